"""Thinking blocks: found in every published template, and split off whatever tokens they come in."""

from __future__ import annotations

import codecs
import json
import random
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from outrider.core.base.errors import OutriderError
from outrider.core.base.protocol import Message
from outrider.core.text.template import ChatTemplate
from outrider.core.text.thinking import Format, Splitter, find, switches

HARMONY = "<|start|><|channel|><|message|>"
GRANITE = "thoughts between <think></think> and write your response between <response></response>"
KIMI = "'<|open|>' + tag + '<|sep|>' open_tag('think')"


class Letters:
    """A vocabulary of bytes and the given tokens."""

    def __init__(self, tokens: Iterable[str] = (), *, special: bool = False) -> None:
        self.ids = {text: 256 + number for number, text in enumerate(tokens)}
        self.special = frozenset(self.ids.values()) if special else frozenset()

    def encode(self, text: str) -> list[int]:
        return [self.ids[text]] if text in self.ids else list(text.encode())


class Case(NamedTuple):
    """A template's words, the end of a prompt, what the model writes, and what each side is to be."""

    source: str
    prompt: str
    written: str
    thinking: str
    answer: str
    tokens: tuple[str, ...] = ()


CASES = {
    "tags": Case(
        "</think>",
        "<|im_start|>assistant\n",
        "<think>\nOkay, a < b\n\nso é🙂.\n</think>\n\nHello!\n",
        "Okay, a < b\n\nso é🙂.",
        "Hello!\n",
        ("<think>", "</think>"),
    ),
    "opened by the template": Case(
        "</think>", "assistant\n<think>\n", "Hm </th </thin\n</think> Hello", "Hm </th </thin", "Hello"
    ),
    "closed by the template": Case(
        "</think>", "<think>\n\n</think>\n\n", "\nHello </think> you", "", "Hello </think> you"
    ),
    "opened twice": Case("</think>", "<think>\n", "\n<think>\nHm.</think>Hello", "Hm.", "Hello", ("<think>",)),
    "opened again": Case("</think>", "assistant\n", "<think>Hm <think> x.</think>Hello", "Hm <think> x.", "Hello"),
    "no thought": Case("</think>", "assistant\n", "\n Hello <think> </think>", "", "\n Hello <think> </think>"),
    "empty thought": Case("</think>", "assistant\n", "<think>\n\n</think>\n\nHello", "", "Hello", ("</think>",)),
    "only the end": Case("</think>", "assistant\n", "</think>Hello", "", "Hello", ("<think>", "</think>")),
    "never closed": Case("</think>", "assistant\n<think>\n", "On and\non </think \n", "On and\non </think", ""),
    "nothing but white space": Case("</think>", "assistant\n", "\n\n", "", "\n\n"),
    "named tags": Case("</seed:think>", "assistant\n", "<seed:think>Hm.</seed:think>Hello", "Hm.", "Hello"),
    "square": Case(
        "[THINK][/THINK]", "[/INST]", "[THINK]Hm [x].[/THINK]Hello [y]", "Hm [x].", "Hello [y]", ("[THINK]",)
    ),
    "cohere": Case(
        "<|START_THINKING|><|END_THINKING|>",
        "<|CHATBOT_TOKEN|>",
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Hello<|END_RESPONSE|>",
        "Hm.",
        "Hello",
        ("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    "gemma": Case(
        "<|channel>thought\n<channel|>",
        "<|turn>model\n",
        "<|channel>thought\nHm.\n<channel|>Hello <|channel>thought\nMore.<channel|>again",
        "Hm.\n\nMore.",
        "Hello \n\nagain",
        ("<|channel>", "<channel|>"),
    ),
    "harmony": Case(
        HARMONY,
        "<|start|>assistant",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=x <|constrain|>json<|message|>{}"
        "<|end|><|start|>assistant<|channel|>final<|message|>Hello",
        "Hm.\n\n{}",
        "Hello",
        ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>"),
    ),
    "harmony at once": Case(HARMONY, "<|start|>assistant", "<|channel|>final<|message|>Hello", "", "Hello"),
    "harmony cut off": Case(HARMONY, "<|start|>assistant", "<|channel|>analysis<|message|>Hm.<|end|><|sta", "Hm.", ""),
    "muse": Case(
        "<|start|>assistant to=self<|message|>",
        "<|start|>assistant",
        " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Hello",
        "Hm.",
        "Hello",
        ("<|start|>", "<|message|>", "<|eom|>"),
    ),
    "solar": Case(
        "<|begin|><|think|><|content|>",
        "<|begin|>assistant",
        "<|think|>Hm.<|end|><|begin|>assistant<|content|>Hello",
        "Hm.",
        "Hello",
    ),
    "kimi": Case(
        KIMI,
        "<|open|>think<|sep|>",
        "Hm.<|close|>think<|sep|><|open|>response<|sep|>Hello<|close|>response<|sep|><|close|>message<|sep|>",
        "Hm.",
        "Hello",
        ("<|open|>", "<|close|>", "<|sep|>"),
    ),
    "granite": Case(
        GRANITE,
        "<|end_of_role|>",
        "<think>Hm.</think>\n<response>Say <a></a>.</response>\n",
        "Hm.",
        "Say <a></a>.",
    ),
    "granite without": Case(GRANITE, "<|end_of_role|>", "An <x></response>", "", "An <x></response>"),
    "apriel": Case(
        "[BEGIN FINAL RESPONSE]",
        "<|begin_assistant|>\nHere are my reasoning steps:\n",
        "Hm.\n[BEGIN FINAL RESPONSE]\nHello [x]\n[END FINAL RESPONSE]\n",
        "Hm.",
        "Hello [x]\n",
        ("[BEGIN FINAL RESPONSE]",),
    ),
}


def form_of(case: Case, *, special: bool = False, tokens: bool = True) -> tuple[Format, Letters]:
    vocabulary = Letters(case.tokens if tokens else (), special=special)
    form = find(case.source, vocabulary)
    assert form is not None
    return form, vocabulary


def split(form: Format, prompt: str, tokens: Sequence[tuple[int, str]]) -> tuple[str, str]:
    """Both sides of an answer that comes in these `(id, text)` tokens."""
    splitter = Splitter(form, prompt)
    shown = [splitter.push(token, text) for token, text in tokens]
    shown.append(splitter.end())
    return "".join(thought for thought, _ in shown), "".join(answer for _, answer in shown)


def in_bytes(data: bytes, cuts: Iterable[int]) -> list[tuple[int, str]]:
    """Tokens that end at `cuts`, as the streaming detokeniser gives them out."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    ends = [*sorted(cuts), len(data)]
    return [(0, decoder.decode(data[start:end])) for start, end in zip([0, *ends], ends, strict=False)]


def in_tokens(vocabulary: Letters, written: str) -> list[tuple[int, str]]:
    """One token a letter, those of the vocabulary whole; a control token has no text."""
    made, at = [], 0
    while at < len(written):
        found = max((text for text in vocabulary.ids if written.startswith(text, at)), key=len, default="")
        if found:
            token = vocabulary.ids[found]
            made.append((token, "" if token in vocabulary.special else found))
        else:
            made.append((0, written[at]))
        at += len(found) or 1
    return made


@pytest.mark.parametrize("name", CASES)
def test_the_split_does_not_depend_on_where_tokens_end(name: str) -> None:
    case = CASES[name]
    form, _ = form_of(case, tokens=False)
    data = case.written.encode()
    rng = random.Random(name)
    cuts = [[], range(1, len(data)), *([at] for at in range(1, len(data)))]
    cuts += [rng.sample(range(1, len(data)), rng.randrange(1, len(data))) for _ in range(40) if len(data) > 2]
    for some in cuts:
        assert split(form, case.prompt, in_bytes(data, some)) == (case.thinking, case.answer), list(some)


@pytest.mark.parametrize("special", [True, False], ids=["control", "ordinary"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.tokens])
def test_markers_that_are_tokens(name: str, special: bool) -> None:
    case = CASES[name]
    form, vocabulary = form_of(case, special=special)
    tokens = in_tokens(vocabulary, case.written)
    assert {token for token, _ in tokens} & set(form.signs)
    assert split(form, case.prompt, tokens) == (case.thinking, case.answer)


def test_letters_of_a_marker_that_is_a_token_are_text() -> None:
    form, vocabulary = form_of(CASES["tags"])
    spelled = [(0, letter) for letter in "<think>x</think>"]
    assert split(form, "assistant\n", spelled) == ("", "<think>x</think>")
    opened = [(vocabulary.ids["<think>"], "<think>"), *spelled, (vocabulary.ids["</think>"], "</think>"), (0, "y")]
    assert split(form, "assistant\n", opened) == ("<think>x</think>", "y")


def test_half_a_character_before_a_marker_is_kept() -> None:
    form, vocabulary = form_of(CASES["tags"])
    tokens = [(vocabulary.ids["<think>"], "<think>"), (0, "x"), (vocabulary.ids["</think>"], "\ufffd</think>")]
    assert split(form, "", tokens) == ("x\ufffd", "")


def test_each_token_knows_its_side() -> None:
    form, vocabulary = form_of(CASES["tags"])
    splitter = Splitter(form, "assistant\n")
    sides = []
    for text in ("<think>", "\n", "Hm", ".", "\n", "</think>", "\n\n", "Hel", "lo"):
        shown = splitter.push(vocabulary.ids.get(text, 0), text)
        sides.append((shown, splitter.inside))
    quiet = ("", "")
    assert sides == [
        *((quiet, True), (quiet, True), (("Hm", ""), True), ((".", ""), True), (quiet, True), (quiet, True)),
        *((quiet, True), (("", "Hel"), False), (("", "lo"), False)),
    ]
    form, vocabulary = form_of(CASES["cohere"])
    splitter = Splitter(form, "")
    splitter.push(0, "Hi")
    assert splitter.push(vocabulary.ids["<|END_RESPONSE|>"], "") == quiet and not splitter.inside


def test_white_space_before_any_marker_is_the_answers() -> None:
    form, _ = form_of(CASES["tags"])
    quiet = ("", "")
    plain = Splitter(form, "assistant\n")
    assert [(plain.push(0, text), plain.inside) for text in ("\n", "Hi")] == [(quiet, False), (("", "\nHi"), False)]


@pytest.mark.parametrize(("special", "shown"), [(True, "a tune"), (False, "a <|channel>tune")])
def test_a_part_of_a_marker_that_marks_nothing(special: bool, shown: str) -> None:
    form, vocabulary = form_of(CASES["gemma"], special=special)
    assert split(form, "", in_tokens(vocabulary, "a <|channel>tune")) == ("", shown)


def test_a_vocabulary_with_both_tags_is_enough() -> None:
    form = find("{{ messages }}", Letters(["<think>", "</think>"]))
    assert form is not None and [marker.text for marker in form.markers] == ["<think>", "</think>"]
    assert find("{{ messages }}", Letters(["<think>"])) is None
    assert find("{{ messages }}", Letters()) is None


def test_text_of_the_user_is_no_marker() -> None:
    form, _ = form_of(CASES["tags"])
    assert form.begins("user\nWhat is <think>?<|im_end|>\n<|im_start|>assistant\n") is None
    harmony, _ = form_of(CASES["harmony"])
    assert harmony.begins("<|start|>user<|message|>x<|end|><|start|>assistant") == ("header", "assistant")


# ---------------------------------------------------------------------------------------------------- templates

TAGGED = {
    "<think>": [
        *("Bielik-11B-v3.0-Instruct", "GLM-4.6", "GLM-4.7-Flash", "HuggingFaceTB-SmolLM3-3B", "Kimi-K2-Thinking"),
        *("LFM2.5-8B-A1B", "LFM2.5-Instruct", "MiniMax-M2", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
        *("NVIDIA-Nemotron-Nano-v2", "Qwen-QwQ-32B", "Qwen-Qwen3-0.6B", "Qwen3.5-4B", "Reka-Edge", "Spark2.5"),
        *("StepFun3.5-Flash", "axolotl-phi_4", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B"),
        *("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek-ai-DeepSeek-V3.1", "deepseek-ai-DeepSeek-V3.2"),
        *("deepseek-ai-DeepSeek-V4", "deepseek-ai-DeepSeek-V4-Flash-0731", "ibm-granite-granite-3.3-2B-Instruct"),
        *("inclusionai-ling-3.0-flash", "llama-cpp-deepseek-r1", "llama-cpp-rwkv-world", "openbmb-MiniCPM5-1B"),
        *("poolside-Laguna-S-2.1", "poolside-Laguna-XS-2.1", "poolside-Laguna-XS.2"),
    ],
    "<seed:think>": ["ByteDance-Seed-OSS"],
    "<mm:think>": ["MiniMax-M3"],
    "<think:opensource>": ["tencent-Hy3"],
    "[THINK]": ["mistralai-Ministral-3-14B-Reasoning-2512"],
    "<|START_THINKING|>": ["Cohere2MoE", "CohereForAI-c4ai-command-r7b-12-2024-tool_use"],
    "<|channel>thought": ["google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved"],
    "<|inner_prefix|>": ["Apertus-8B-Instruct"],
    "<|open|>think<|sep|>": ["Kimi-K3"],
    "Here are my reasoning steps:": ["Apriel-1.6-15b-Thinker-fixed", "unsloth-Apriel-1.5"],
    "<|start|>": ["muse-glimmer", "openai-gpt-oss-120b"],
    "<|begin|>": ["upstage-Solar-Open-100B"],
}
# Where an answer begins: as the template is, asked for thinking, asked for none. T in a thought, H in a header,
# A behind a closed block, - with no marker at the end of the prompt.
BEGINS = {
    "TTT": "Apriel-1.6-15b-Thinker-fixed MiniMax-M2 NVIDIA-Nemotron-Nano-v2 StepFun3.5-Flash llama-cpp-deepseek-r1 "
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "TTA": "Cohere2MoE GLM-4.7-Flash Kimi-K3 NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 Qwen3.5-4B Spark2.5 poolside-Laguna-S-2.1 "
    "inclusionai-ling-3.0-flash",
    "ATA": "Qwen-QwQ-32B deepseek-ai-DeepSeek-R1-Distill-Qwen-32B deepseek-ai-DeepSeek-V3.1 deepseek-ai-DeepSeek-V3.2 "
    "deepseek-ai-DeepSeek-V4 deepseek-ai-DeepSeek-V4-Flash-0731 poolside-Laguna-XS-2.1 poolside-Laguna-XS.2 tencent-Hy3",
    "A-A": "CohereForAI-c4ai-command-r7b-12-2024-tool_use google-gemma-4-31B-it google-gemma-4-31B-it-interleaved",
    "--A": "GLM-4.6 HuggingFaceTB-SmolLM3-3B Qwen-Qwen3-0.6B",
    "-TA": "llama-cpp-rwkv-world openbmb-MiniCPM5-1B",
    "-T-": "Bielik-11B-v3.0-Instruct Reka-Edge",
    "HHH": "muse-glimmer openai-gpt-oss-120b upstage-Solar-Open-100B",
}
LETTER = {"thinking": "T", "header": "H", "answer": "A"}
NOW = datetime(2026, 1, 15, 12)


@pytest.fixture(scope="module")
def published(templates: Path) -> dict[str, ChatTemplate]:
    """Every published template by name."""
    known = json.loads((templates / "expected.json").read_text("utf-8"))["templates"]
    found = {}
    for name, entry in known.items():
        with (templates / name).open(encoding="utf-8", newline="") as file:
            found[name.removesuffix(".jinja")] = ChatTemplate(file.read(), entry["special_tokens"])
    return found


def test_every_published_template_is_known(published: dict[str, ChatTemplate]) -> None:
    found: dict[str, list[str]] = {}
    for name, template in published.items():
        form = find(template.source, Letters())
        if form is not None:
            found.setdefault(form.markers[0].text, []).append(name)
    assert {tag: sorted(names) for tag, names in found.items()} == {tag: sorted(names) for tag, names in TAGGED.items()}
    assert len(published) == 76


def test_where_every_published_prompt_leaves_off(published: dict[str, ChatTemplate]) -> None:
    expected = {name: letters for letters, names in BEGINS.items() for name in names.split()}
    found = {}
    for name, template in published.items():
        form = find(template.source, Letters())
        if form is None:
            continue
        letters = ""
        for think in (None, True, False):
            options = {} if think is None else switches(template.source, think)
            begins = form.begins(template.render([Message("user", "Say <think> ")], now=NOW, **options))
            letters += LETTER[begins[0]] if begins else "-"
        found[name] = letters
    assert {name: letters for name, letters in found.items() if letters != "---"} == expected


def test_what_templates_keep_of_earlier_thoughts(published: dict[str, ChatTemplate]) -> None:
    """Most drop them; one that shows the thought of the last turn writes it between the markers that were found."""
    shows, keeps = 0, 0
    for template in published.values():
        form = find(template.source, Letters())
        cache = [Message("user", "Q"), Message("assistant", "ANSWER", "THOUGHT")]
        try:
            last = template.render(cache, add_generation_prompt=False, now=NOW)
            longer = template.render([*cache, Message("user", "R")], now=NOW)
        except OutriderError:
            continue
        assert form is not None or "THOUGHT" not in last + longer
        keeps += "THOUGHT" in longer
        prompt, thought, rest = last.partition("THOUGHT")
        if form is not None and thought and form.begins(prompt) is not None:
            shows += 1
            written = [(0, "THOUGHT" + rest.partition("ANSWER")[0] + "ANSWER")]
            assert split(form, prompt, written) == ("THOUGHT", "ANSWER")
    assert shows >= 18 and 0 < keeps < shows


def test_switches() -> None:
    assert switches("enable_thinking", False) == {"enable_thinking": False, "thinking": False}
    assert switches("reasoning_effort", True)["reasoning_effort"] == "high"
    assert switches("reasoning_effort", False)["reasoning_effort"] == "low"
    assert switches("reasoning_effort == 'no_think'", False)["reasoning_effort"] == "no_think"
    assert "reasoning_effort" not in switches("reasoning_effort or enable_thinking", True)
