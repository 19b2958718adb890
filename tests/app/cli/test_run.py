"""`outrider run`: what reaches the engine, what reaches stdout and stderr, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from outrider.core.base import protocol

KEYS = [
    *("model", "drafter", "rule", "seed", "text", "token_ids", "prompt_tokens", "finish", "passes", "proposed"),
    *("accepted", "kinds", "timing", "tokens_per_second", "drafters", "speedup", "thinking", "reused"),
    *("limit", "loops", "sampling", "plain"),
]


def test_prints_the_answer_alone(outrider):
    done = outrider("run", "Where?")
    assert (done.code, done.out, done.err) == (0, "Paris is nice\n", "")


def test_json_is_one_object_with_the_keys_of_the_report_in_order(outrider):
    done = outrider("run", "--json", "Where?")
    assert list(json.loads(done.out)) == KEYS == list(protocol.Report.__struct_fields__)
    assert done.out.count("\n") == 1
    assert json.loads(done.out)["speedup"] is None


def test_options_reach_the_engine(outrider, home):
    done = outrider(
        *("run", "--model", "m", "--drafter", "prompt-lookup", "--draft-tokens", "3", "--temperature", "0.5"),
        *("--top-p", "0.9", "--top-k", "40", "--min-p", "0.1", "--seed", "3", "--max-tokens", "9", "--stop", "a"),
        *("--stop", "b", "--system", "Be brief.", "--device", "cuda:1", "--dtype", "bf16", "--context", "512"),
        *("--threads", "2", "--rule", "rejection", "--repeat-penalty", "1.1", "--presence-penalty", "0.2"),
        *("--frequency-penalty", "-0.3", "--logit-bias", "5=-100", "--logit-bias", "7=2.5", "Hello"),
    )
    assert done.code == 0
    (request,) = home.requests("Generate")
    assert request["model"] == {"model": "m", "device": "cuda:1", "dtype": "bf16", "context": 512, "threads": 2}
    assert request["drafter"] == {"name": "prompt_lookup", "tokens": 3}
    assert request["rule"] == "rejection"
    assert request["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]
    assert request["sampling"] == {
        "temperature": 0.5,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.1,
        "repeat_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.3,
        "logit_bias": {"5": -100.0, "7": 2.5},
        "seed": 3,
        "max_tokens": 9,
        "stop": ["a", "b"],
    }


def test_without_options_the_engine_chooses(outrider, home):
    outrider("run", "Hello")
    (request,) = home.requests("Generate")
    assert (request["model"], request["sampling"], request["drafter"]) == ({}, {}, {})


@pytest.mark.parametrize(
    ("words", "stdin", "text"),
    [
        (["Sum up:"], "one\ntwo\n", "Sum up:\n\none\ntwo"),
        ([], "from the pipe\n", "from the pipe"),
        (["Hello"], "  \n", "Hello"),
        ([], "\ufeffBOM\r\n", "BOM"),
        ([], "née".encode("utf-16"), "née"),
        (["Sum up:"], "née\n".encode("utf-32"), "Sum up:\n\nnée"),
        (["--", "--debug"], "", "--debug"),
        (["a\udcffb"], "", "a\ufffdb"),
    ],
)
def test_prompt_and_stdin(outrider, home, words, stdin, text):
    assert outrider("run", *words, stdin=stdin).code == 0
    (request,) = home.requests("Generate")
    assert request["messages"] == [{"role": "user", "content": text}]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"caf\xe9", "is not UTF-8 text (byte 3)"),
        (bytes(range(256)) * 8, "is not text"),
        (b"\xff\xfe\x00\xd8", "is not the utf-16 text that it says it is"),
        (b"x" * 4_000_001, "is longer than 4.0 MB"),
    ],
)
def test_stdin_that_is_no_text_is_refused(outrider, home, data, told):
    done = outrider("run", "Sum up:", stdin=data)
    assert (done.code, done.out) == (2, "") and told in done.err
    assert not (home.path / "requests").exists()


def test_raw_is_sent_as_it_is(outrider, home):
    outrider("run", "--raw", stdin="Once upon\n")
    (request,) = home.requests("Generate")
    assert request["prompt"] == "Once upon\n"
    assert "messages" not in request


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], "no prompt"),
        (["  "], "no prompt"),
        (["a", "b"], "quotes"),
        (["--temperature", "-1", "x"], "--temperature"),
        (["--temperature", "nan", "x"], "--temperature"),
        (["--temperature", "warm", "x"], "--temperature"),
        (["--top-p", "0", "x"], "--top-p"),
        (["--top-p", "nan", "x"], "--top-p"),
        (["--min-p", "1.5", "x"], "--min-p"),
        (["--top-k", "-1", "x"], "--top-k"),
        (["--max-tokens", "0", "x"], "--max-tokens"),
        (["--seed", "-1", "x"], "--seed"),
        (["--seed", str(1 << 63), "x"], "--seed"),
        (["--repeat-penalty", "0", "x"], "--repeat-penalty"),
        (["--presence-penalty", "inf", "x"], "--presence-penalty"),
        (["--stop", "", "x"], "--stop"),
        (["--logit-bias", "five=1", "x"], "--logit-bias"),
        (["--logit-bias", "5", "x"], "--logit-bias"),
        (["--logit-bias", "5=nan", "x"], "--logit-bias"),
        (["--logit-bias", "-5=1", "x"], "--logit-bias"),
        (["--logit-bias", "1" + "0" * 30 + "=1", "x"], "--logit-bias"),
        (["--drafter-option", "a=1" + "0" * 30, "x"], "--drafter-option a"),
        (["--drafter-option", 'a={"b": [-1' + "0" * 30 + "]}", "x"], "--drafter-option a"),
        (["--repeat-penalty", "1e-45", "x"], "--repeat-penalty must be from 0.01 to 100"),
        (["--seed", "1" + "0" * 23, "x"], "from 0 to 9223372036854775807, not 100000000000000000000000"),
        (["--top-k", str(1 << 31), "x"], "--top-k must be from 0 to 2147483647"),
        (["--max-tokens", "1" + "0" * 40, "x"], "--max-tokens must be from 1 to 2147483647"),
        (["--draft-tokens", "0", "x"], "--draft-tokens"),
        (["--draft-tokens", "64", "x"], "1<=x<=63"),
        (["--context", "0", "x"], "--context"),
        (["--context", "1" + "0" * 40, "x"], "16<=x<=2147483647"),
        (["--threads", "0", "x"], "--threads"),
        (["--threads", "99999", "x"], f"1<=x<={protocol.most_threads()}"),
        (["--device", "tpu", "x"], "--device"),
        (["--dtype", "int3", "x"], "--dtype"),
        (["--rule", "luck", "x"], "--rule"),
        (["--model", " ", "x"], "--model"),
        (["--drafter", "", "x"], "--drafter"),
        (["--drafter", "none", "--drafter-weights", "w", "x"], "--drafter-weights"),
        (["--raw", "--system", "s", "x"], "--system"),
        (["--raw", "--no-think", "x"], "--no-think"),
        (["--json", "--marks", "x"], "--marks"),
        (["--json", "-x", "x"], "-x"),
        (["--raw", "-f", "x", "x"], "--file"),
        (["-f", "/nowhere/x", "x"], "/nowhere/x"),
        (["--bogus", "x"], "--bogus"),
        (["--seed", "1", "--seed", "2", "x"], "--seed is given more than once"),
        (["-m", "a", "--model", "b", "x"], "--model is given more than once"),
        (["--think", "--no-think", "x"], "--think or --no-think is given more than once"),
        (["--drafter-option", "tree=chain", "--drafter-option", "tree=2", "x"], "gives name tree more than once"),
        (["--logit-bias", "5=1", "--logit-bias", "5=2", "x"], "gives token 5 more than once"),
    ],
)
def test_wrong_usage_is_said_before_the_engine_starts(outrider, home, words, names):
    done = outrider("run", *words)
    assert (done.code, done.out) == (2, "")
    first, second = done.err.splitlines()
    assert first.startswith("Error: ")
    assert names in done.err
    assert second
    assert not (home.path / "requests").exists()


def test_what_is_repeatable_may_be_repeated(outrider, home):
    words = ("--stop", "a", "--stop", "b", "--logit-bias", "1=2", "--logit-bias", "2=2", "--stats", "--stats")
    assert outrider("run", *words, "x").code == 0
    (request,) = home.requests("Generate")
    assert (request["sampling"]["stop"], request["sampling"]["logit_bias"]) == (["a", "b"], {"1": 2.0, "2": 2.0})


def test_an_open_pipe_that_says_nothing_is_told(start, home):
    process = start("run", "Hello", stdin=subprocess.PIPE)
    assert b"Waiting for standard input" in process.stderr.readline()
    assert b"< /dev/null" in process.stderr.readline()
    process.stdin.write(b"more")
    process.stdin.close()
    assert process.wait(20) == 0
    (request,) = home.requests("Generate")
    assert request["messages"][0]["content"] == "Hello\n\nmore"


@pytest.mark.parametrize(("prompt", "code"), [("fail", 1), ("fail usage", 2)])
def test_a_failure_is_two_lines(outrider, prompt, code):
    done = outrider("run", prompt)
    assert (done.code, done.out, done.err) == (code, "", "Error: It failed.\nTry less.\n")


@pytest.mark.parametrize("words", [("--debug", "run", "fail"), ("run", "--debug", "fail")])
def test_debug_shows_both_tracebacks(outrider, words):
    done = outrider(*words)
    assert "Traceback of the engine" in done.err
    assert "Traceback (most recent call last)" in done.err
    assert done.err.endswith("Error: It failed.\nTry less.\n")


def test_the_engine_dies_in_mid_answer(outrider):
    done = outrider("run", "die")
    assert (done.code, done.out) == (1, "Paris is nice\n")
    assert done.err.startswith("Error: The engine process was killed by SIGKILL.\n")
    assert "engine.log" in done.err


def test_an_answer_that_broke_off_fails(outrider):
    done = outrider("run", "broken end")
    assert (done.code, done.out) == (1, "Paris is nice\n")


def test_a_warning_is_said_and_the_answer_goes_on(outrider):
    done = outrider("run", "warn")
    assert (done.code, done.out) == (0, "Paris is nice\n")
    assert done.err == "Warning: boom failed in propose; going on without it.\n"


def test_stats_are_one_line_on_stderr(outrider):
    done = outrider("run", "--stats", "Where?")
    assert done.out == "Paris is nice\n"
    assert done.err.count("\n") == 1
    assert "1.00 tokens/pass · 1 of 3 drafted tokens accepted" in done.err


def test_a_lossy_rule_is_named_wherever_figures_are(outrider):
    assert outrider("run", "--rule", "typical", "--stats", "Where?").err.startswith("LOSSY: typical acceptance")
    assert '"rule": "typical"' in outrider("run", "--rule", "typical", "--json", "Where?").out
    assert "LOSSY" in outrider("run", "--help").out


def test_marks_colour_accepted_words_and_nothing_else(outrider, monkeypatch):
    assert outrider("run", "--marks", "Where?").out == "Paris\x1b[32m is\x1b[0m nice\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert outrider("run", "--marks", "Where?").out == "Paris\x1b[4m is\x1b[0m nice\n"


def test_a_pipe_gets_the_text_as_it_is_and_a_terminal_never_a_command(outrider, screen):
    assert outrider("run", "escape").out == "Blue \x1b[31msky\x9b2J\r\x7f é\ttab\nend\n"
    code, shown = screen("run", "escape").finish()
    assert code == 0
    assert "Blue ␛[31msky\ufffd2J ␡ é tab\r\nend\r\n".encode() in shown  # a lone return is a blank
    assert b"\x1b[31m" not in shown and b"\x9b" not in shown.replace("\u241b".encode(), b"")


def test_a_terminal_shows_markdown_unless_it_is_a_dumb_one(screen, monkeypatch):
    _, shown = screen("run", "markdown").finish()
    assert "\x1b[1;4mTitle\x1b[0m\r\n\r\nsome \x1b[1mbold\x1b[0m words\r\n\r\n • one\r\n".encode() in shown
    assert outrider_text(screen("run", "markdown", stdout=subprocess.PIPE)).startswith("# Title\n\nsome **bold** words")
    monkeypatch.setenv("TERM", "dumb")
    _, shown = screen("run", "markdown").finish()
    assert b"# Title\r\n\r\nsome **bold** words" in shown


def outrider_text(terminal):
    return terminal.process.stdout.read().decode()


def test_files_go_along_before_the_prompt(outrider, home, tmp_path):
    (tmp_path / "a.txt").write_text("alpha\n")
    (tmp_path / "b.md").write_text("```\nbeta\n```")
    names = [str(tmp_path / "a.txt"), str(tmp_path / "b.md")]
    assert outrider("run", "-f", names[0], "--file", names[1], "Compare.", stdin="piped").code == 0
    (request,) = home.requests("Generate")
    (message,) = request["messages"]
    blocks = [f"File: {names[0]}\n```\nalpha\n```", f"File: {names[1]}\n````\n```\nbeta\n```\n````"]
    assert message["content"] == "\n\n".join([*blocks, "Compare.", "piped"])
    assert outrider("run", "-f", names[0]).code == 0


def test_only_code(outrider, home):
    done = outrider("run", "-x", "markdown")
    assert (done.code, done.out, done.err) == (0, "print(1)\n  x\n", "")
    assert home.requests("Cancel")  # nothing behind the block is waited for
    done = outrider("run", "-x", "Where?")
    assert (done.code, done.out) == (1, "") and "no code block" in done.err
    assert done.err.startswith("Paris is nice\n")  # what was waited for is not thrown away


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("cut by tokens", "cut off at 3 tokens"),
        ("cut by context", "context is full"),
        ("circles", "repeats itself"),
        ("Hello", ""),
    ],
)
@pytest.mark.parametrize("words", [[], ["--json"], ["--no-stream"]])
def test_what_cut_an_answer_and_loops_are_told(outrider, prompt, says, words):
    done = outrider("run", *words, prompt)
    assert done.code == 0 and "nice" in done.out
    assert (says in done.err) if says else done.err == ""


def test_without_streaming_it_comes_at_once(outrider, screen):
    assert outrider("run", "--no-stream", "--marks", "Where?").out == "Paris\x1b[32m is\x1b[0m nice\n"
    _, shown = screen("run", "--no-stream", "Where?").finish()
    assert b"Writing  1 tokens" in shown and shown.endswith(b"Paris is nice\r\n")
    assert b"Paris\r" not in shown


def test_a_thought_never_reaches_a_pipe(outrider, screen):
    done = outrider("run", "think")
    assert (done.code, done.out, done.err) == (0, "Paris is nice\n", "")
    terminal = screen("run", "think", stdout=subprocess.PIPE)
    assert terminal.process.stdout.read() == b"Paris is nice\n"
    _, shown = terminal.finish()
    assert b"Thinking  1 tokens" in shown and b"They ask" not in shown and shown.endswith(b"\r\x1b[K")


def test_a_terminal_shows_the_thought_dim_above_the_answer(screen):
    code, shown = screen("run", "--marks", "think").finish()
    assert code == 0
    thought = b"\x1b[2mThey ask\x1b[0m\x1b[2m\x1b[32m [31mwhere\x1b[0m\x1b[2m.\x1b[0m"
    assert shown.endswith(thought + b"\r\n\r\nParis\x1b[32m is\x1b[0m nice\r\n")


def test_json_tells_the_thought(outrider):
    found = json.loads(outrider("run", "--json", "think").out)
    assert (found["thinking"], found["text"]) == ("They ask \x1b[31mwhere.", "Paris is nice")


def test_a_thought_without_an_answer_is_told(outrider, screen):
    done = outrider("run", "think no answer")
    assert (done.code, done.out) == (0, "")
    assert done.err == "The model thought, but gave no answer.\nAllow more --max-tokens, or ask with --no-think.\n"
    _, shown = screen("run", "think no answer").finish()
    assert b".\x1b[0m\x1b[2m!\x1b[0m\r\n\r\nThe model thought" in shown


@pytest.mark.parametrize(("words", "think"), [(["--think"], True), (["--no-think"], False), ([], None)])
def test_asking_for_thinking(outrider, home, words, think):
    assert outrider("run", *words, "Hello").code == 0
    (request,) = home.requests("Generate")
    assert request.get("think") is think


def test_json_holds_no_raw_control_characters(outrider):
    done = outrider("run", "--json", "escape")
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in done.out.rstrip("\n"))
    assert json.loads(done.out)["text"] == "Blue \x1b[31msky\x9b2J\r\x7f é\ttab\nend"


def test_progress_shows_in_a_terminal_and_is_wiped_before_the_answer(screen):
    _, shown = screen("run", "Where?").finish()
    assert b"Loading the model" in shown
    assert b"\r\x1b[KParis\r" in shown and shown.endswith(b"Paris is nice\r\n")


def test_a_reader_that_has_enough_ends_it_quietly(start):
    process = start("run", "on and on")
    assert process.stdout.read(40).startswith(b"Paris is niceon and on")
    process.stdout.close()
    assert process.wait() == 0
    assert process.stderr.read() == b""


def test_ctrl_c_cancels_and_keeps_the_text(start, home):
    process = start("run", "long until cancel")
    assert process.stdout.read(13) == b"Paris is nice"
    engine = home.engine()
    process.send_signal(signal.SIGINT)
    assert process.stdout.read() == b"\n"
    assert (process.wait(), process.stderr.read()) == (130, b"")
    assert home.requests("Cancel")
    assert engine.ends()


def test_ctrl_c_with_json_still_prints_the_report(screen):
    terminal = screen("run", "--json", "long until cancel", stdout=subprocess.PIPE)
    terminal.read_until(b"layers\r\x1b[K")  # the first words have come
    terminal.process.send_signal(signal.SIGINT)
    assert json.loads(terminal.process.stdout.read())["finish"] == "cancelled"
    assert terminal.finish()[0] == 130


def test_ctrl_c_that_also_ends_the_reader(start, home):
    process = start("run", "long until cancel")
    assert process.stdout.read(13) == b"Paris is nice"
    engine = home.engine()
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert (process.wait(), process.stderr.read()) == (130, b"")
    assert engine.ends()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
@pytest.mark.parametrize("words", [["run", "Where?"], ["models", "list"], ["--help"]])
def test_a_full_disk_is_said(start, words):
    with open("/dev/full", "wb") as full:
        process = start(*words, stdout=full)
        assert process.wait() == 1
    assert process.stderr.read().startswith(b"Error: The disk is full.\n")


def test_ctrl_c_while_loading_ends_at_once(screen, home):
    terminal = screen("run", "load forever")
    terminal.read_until(b"layers")
    engine = home.engine()
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.finish()[0] == 130
    assert engine.ends()


@pytest.mark.parametrize("twice", [True, False])
def test_an_engine_that_does_not_listen_is_ended_too(start, home, twice):
    process = start("run", "long stubborn")
    assert process.stdout.read(13) == b"Paris is nice"
    engine = home.engine()
    process.send_signal(signal.SIGINT)
    assert process.stdout.read(6) == b" never"
    if twice:
        process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert engine.ends()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_takes_the_engine_along(start, home, number):
    process = start("run", "long until cancel")
    assert process.stdout.read(13) == b"Paris is nice"
    engine = home.engine()
    process.send_signal(number)
    assert process.stdout.read() == b"\n"
    assert (process.wait(), process.stderr.read()) == (128 + number, b"")
    assert engine.ends()


def test_without_the_command_line_the_engine_ends(start, home):
    process = start("run", "long until cancel")
    assert process.stdout.read(13) == b"Paris is nice"
    engine = home.engine()
    process.kill()
    assert engine.ends()
