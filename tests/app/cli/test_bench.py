"""`outrider bench` against the fake engine: what it asks, what it prints and writes, and what a Ctrl-C leaves."""

from __future__ import annotations

import json
import signal
import subprocess
from xml.etree import ElementTree

import pytest

from outrider.app import options
from outrider.app.commands import _prompts
from outrider.core.base.protocol import Bench, BenchPrompt

SVG = "{http://www.w3.org/2000/svg}"


def asked(home, *, number=-1):
    """The drafters of a request, as the engine got them."""
    return [{"name": "auto"} | drafter for drafter in home.requests("Bench")[number]["drafters"]]


def test_it_measures_what_fits_against_plain(outrider, home):
    done = outrider("bench", "--quick", "--categories", "chat,code_edit")
    assert done.code == 0
    (request,) = home.requests("Bench")
    assert [drafter["name"] for drafter in asked(home)] == ["none", "auto", "prompt_lookup"]
    assert [prompt["category"] for prompt in request["prompts"]] == ["chat", "code_edit"]
    assert request["sampling"] == {"temperature": 0.0, "max_tokens": 48}
    assert "steps" not in request
    lines = [line.split() for line in done.out.splitlines()]
    assert ["prompt_lookup", "64.0", "2.00×", "1.50×", "2.00", "50%"] in lines
    assert ["total", "plain", "32.0", "1.00"] in lines


def test_weights_go_to_those_that_take_them(outrider, home):
    outrider("bench", "--model", "pair", "--drafter-weights", "small.gguf", "--categories", "chat")
    assert home.requests("Drafters")[0]["weights"] == "small.gguf"
    weights = {drafter["name"]: drafter.get("weights") for drafter in asked(home)}
    assert weights == {"none": None, "auto": "small.gguf", "draft_model": "small.gguf", "prompt_lookup": None}
    outrider("bench", "--drafter", "draft_model", "--drafter-weights", "small.gguf", "--categories", "chat")
    assert asked(home)[1:] == [{"name": "draft_model", "weights": "small.gguf"}]


def test_json(outrider, home, tmp_path):
    done = outrider("bench", "--json", "-", "--limit", "1", "--drafters", "prompt-lookup", "--categories", "chat")
    assert json.loads(done.out)["drafters"] == ["none", "prompt_lookup"]
    path = tmp_path / "result.json"
    words = ("--json", str(path), "--limit", "1", "--drafter", "differs", "--drafter-option", "a=1", "--steps")
    done = outrider("bench", *words)
    assert home.requests("Bench")[-1]["drafters"][1] == {"name": "differs", "options": {"a": 1}}
    assert home.requests("Bench")[-1]["steps"] is True
    assert json.loads(path.read_text())["drafters"] == ["none", "differs"]
    assert "CATEGORY" in done.out
    assert list(tmp_path.glob("*.part")) == []


TABLES = """\
SmolLM2-135M-Instruct · bfloat16 · cpu, 2 threads · 2 prompts

CATEGORY    DRAFTER  TOK/S  RATIO       95 %  WHOLE  A PASS  ACCEPTED
code_edit   plain     32.0                             1.00
            eagle     48.0  1.50×             1.25×    1.50       50%
            differs   64.0  2.00×             1.50×    2.00       50%
structured  plain     32.0                             1.00
            eagle     48.0  1.50×             1.25×    1.50       50%
            differs   64.0  2.00×             1.50×    2.00       50%
total       plain     32.0                             1.00
            eagle     48.0  1.50×  1.20–1.80  1.25×    1.50       50%
            differs   64.0  2.00×  1.20–1.80  1.50×    2.00       50%
"""
REMARKS = """\
memory             642 MB at most, 127 MB of weights, 190 MB of states, eagle 5.0 MB
first token after  plain 50 ms, eagle 50 ms, differs 50 ms
worst, eagle       0.90× on edit-rename (c)
worst, differs     0.90× on edit-rename (c)
differ, differs    2 of 2 answers; first edit-rename at character 11: plain “…The sky is blue.…”, drafted “…The sky is [31mred.…”
cut at the limit   1 of 2 plain answers
plain passes       most between 7.0 and 7.7 ms; load average 0.1 before, 2.0 after
careful            Noisy: so.
"""


def test_the_tables(outrider):
    words = ("bench", "--drafters", "eagle,differs", "--limit", "1", "--categories", "code_edit,structured")
    done = outrider(*words)
    assert done.out.startswith(TABLES)
    assert done.out.endswith("\n\n" + REMARKS)
    lines = done.out.splitlines()
    assert "eagle        75%  0.25 ms  4  0.75  0.008    +25%      2.95×     2.25×" in lines
    assert "eagle    80%  75%  (50%)" in lines
    assert "   1   7.00   1.00×        8.00      40" in lines  # by itself, and in the answers
    assert "   2   8.00   1.14×" in lines  # one pass is no median
    assert "   5                      10.00      30" in lines
    tables = [line for part in done.out.split("\n\n")[:-1] for line in part.splitlines()]
    assert max(map(len, tables)) <= 80


def test_markdown_has_the_same_tables(outrider, tmp_path):
    path = tmp_path / "result.md"
    words = ("bench", "--drafters", "differs,a|b", "--limit", "1", "--categories", "code_edit")
    assert outrider(*words, "--markdown", str(path)).out.startswith("SmolLM2")
    printed = outrider(*words, "--markdown", "-").out
    assert printed == path.read_text()
    assert "| code\\_edit | plain | 32.0 |  |  |  | 1.00 |  |\n|  | differs | 48.0 | 1.50× |" in printed
    assert "a\\|b" in printed
    assert all(line.count("|") - line.count("\\|") == 9 for line in printed.splitlines()[2:7])
    assert "\x1b" not in printed


def test_the_plot_is_a_picture_of_every_bar(outrider, tmp_path):
    path = tmp_path / "plot.svg"
    words = ("bench", "--drafters", "eagle,<&b>", "--limit", "1", "--categories", "code_edit,structured")
    assert outrider(*words, "--model", "starter", "--plot", str(path)).code == 0
    picture = ElementTree.fromstring(path.read_text())
    texts = [element.text for element in picture.iter(f"{SVG}text")]
    assert texts.count("<&b>") == texts.count("eagle") == 3
    assert {"code_edit", "structured", "total", "1.50×", "1.50×  (1.20–1.80)"} <= set(texts)
    bars = [bar for bar in picture.iter(f"{SVG}rect") if bar.get("class") != "page"]
    widths = [float(bar.attrib["width"]) for bar in bars]
    assert len(bars) == 6 and widths[0] / widths[1] == pytest.approx(1.5 / 2.0, abs=0.01)
    assert len([path for path in picture.iter(f"{SVG}path") if path.get("class") == "range"]) == 2  # of the total
    assert "prefers-color-scheme:dark" in path.read_text()


def test_several_at_once(outrider, home):
    done = outrider("bench", "--batch", "4, 16", "--drafters", "eagle", "--limit", "1", "--categories", "chat")
    assert home.requests("Bench")[0]["batch"] == [4, 16]
    assert "ANSWERS  DRAFTER  TOK/S  TOKENS  STATES\n      4  plain    128.0     256  8.0 MB\n" in done.out
    assert "     16  plain                   Too many.\n" in done.out


def test_without_drafters_there_is_still_a_table(outrider, tmp_path):
    path = tmp_path / "plot.svg"
    done = outrider("bench", "--drafter", "none", "--limit", "1", "--categories", "chat", "--plot", str(path))
    assert done.code == 0
    assert "What a pass costs" in done.out and "What drafting costs" not in done.out
    assert "No drafter was measured." in path.read_text()


def test_ctrl_c_keeps_what_was_measured(screen, home, tmp_path):
    path = tmp_path / "result.json"
    words = ("bench", "--model", "endless", "--drafters", "eagle", "--categories", "chat", "--json", str(path))
    terminal = screen(*words, stdout=subprocess.PIPE)
    terminal.read_until(b"Measuring one, plain")
    engine = home.engine()
    terminal.process.send_signal(signal.SIGINT)
    out = terminal.process.stdout.read().decode()
    code, shown = terminal.finish()
    assert code == 130
    assert b"Stopped after 1 of 3 prompts." in shown
    assert "1 prompt · stopped before the end" in out
    assert json.loads(path.read_text())["stopped"] is True
    assert home.requests("Cancel")
    assert engine.ends()


# ------------------------------------------------------------------------------------------------ prompts


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        ("", "no prompts"),
        ("{}\n", "Line 1 of FILE has neither `turns` nor `prompt`."),
        ('{"id": "a", "category": "c", "turns": ["x"]}\nnonsense\n', "Line 2"),
        ('{"id": "a", "category": "c", "turns": [" "]}\n', "empty turn"),
        ('{"id": "a", "category": "c", "turns": []}\n', "empty turn"),
        (
            '{"prompt": "x", "id": 1}\n\n{"prompt": "y", "question_id": "1"}\n',
            "Lines 1 and 3 of FILE have the same id, 1.",
        ),
        ('[\n{"prompt": "x"}\n]', "take one object a line instead"),
        ('{"prompt": 5}', "looks like this: {"),
        ("\xff", "Line 1"),
    ],
)
def test_bad_prompts(outrider, home, tmp_path, text, says):
    path = tmp_path / "prompts.jsonl"
    if text is not None:
        path.write_text(text, "latin-1")
    done = outrider("bench", "--prompts", str(path))
    assert done.code == 2
    assert says.replace("FILE", str(path)) in done.err
    assert not (home.path / "requests").exists()


def test_prompts_of_other_sets(tmp_path):
    path = tmp_path / "prompts.jsonl"
    lines = [
        '\ufeff{"question_id": 81, "category": "writing", "turns": ["a", "b"], "reference": [1]}',
        '{"task_id": "HumanEval/0", "prompt": "def f():", "canonical_solution": "x"}',
        "",
        '{"prompt": "c"}',
    ]
    path.write_text("\n".join(lines), "utf-8")
    assert _prompts.read(str(path)) == [
        BenchPrompt("81", "writing", ["a", "b"]),
        BenchPrompt("HumanEval/0", "prompts", ["def f():"]),
        BenchPrompt("line 4", "prompts", ["c"]),
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("--categories", "nope"),
        ("--json", "/no/such/folder/x"),
        ("--markdown", "/no/such/folder/x"),
        ("--plot", "/no/such/folder/x"),
        ("--json", "-", "--markdown", "-"),
        ("--temperature", "-1"),
        ("--batch", "0"),
        ("--batch", "4,many"),
        ("--batch", "4", "--exact"),
        ("--repeats", "0"),
    ],
)
def test_usage(outrider, home, words):
    assert outrider("bench", *words).code == 2
    assert not (home.path / "requests").exists()


def test_the_bundled_prompts():
    prompts = _prompts.read()
    assert len({prompt.id for prompt in prompts}) == len(prompts) == 16
    categories = {prompt.category for prompt in prompts}
    assert categories == {"chat", "code", "code_edit", "summarisation", "structured", "translation"}
    assert all(prompt.source for prompt in prompts)
    assert Bench(id=1, model=options.ModelChoice(), prompts=prompts, drafters=[]).prompts[0] == prompts[0]
    assert isinstance(prompts[0], BenchPrompt)


@pytest.mark.parametrize(
    "words",
    [("-d", "suffix", "-d", "eagle"), ("--drafters", "suffix,eagle"), ("-d", "suffix, eagle", "--drafters", "suffix")],
)
def test_every_way_of_naming_drafters_counts(outrider, home, words):
    assert outrider("bench", *words, "--categories", "chat", "--category", "code", "--limit", "1").code == 0
    (asked,) = home.requests("Bench")
    assert [choice["name"] for choice in asked["drafters"]] == ["none", "suffix", "eagle"]
    assert {prompt["category"] for prompt in asked["prompts"]} == {"chat", "code"}
