"""Thoughts through the whole engine: a toy that recites one, what the template makes of it, and what the next turn reuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import toys
from talkers import OPENED, QWEN, SWITCHED, convolving, reciting, rows, with_template

from outrider.core.base.protocol import DrafterChoice, Generate, Message, ModelChoice, Notice, Report, Sampling, Step
from outrider.core.session.chat_cache import ChatCache
from outrider.core.session.engine import Engine


def ask(
    engine: Engine, model: Path, *messages: Message, drafter: str = "none", say: list | None = None, **more
) -> Report:
    sampling = Sampling(temperature=0, max_tokens=more.pop("max_tokens", 40), stop=more.pop("stop", []))
    request = Generate(
        1,
        ModelChoice(model=str(model), dtype="fp32", device="cpu"),
        messages=list(messages) or [Message("user", "Say it")],
        sampling=sampling,
        drafter=DrafterChoice(name=drafter, tokens=4 if drafter != "none" else None),
        **more,
    )
    return engine.generate(request, (say if say is not None else []).append, toys.Still())


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reciting(tmp_path_factory.mktemp("thinker") / "model", QWEN, "<think>", "\rabé\t", "</think>", " XYZ.w")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


@pytest.mark.parametrize("drafter", ["none", "prompt_lookup"])
def test_a_thought_is_streamed_apart(engine: Engine, thinker: Path, drafter: str) -> None:
    events: list = []
    report = ask(engine, thinker, drafter=drafter, say=events)
    assert (report.thinking, report.text, report.finish) == ("abé", "XYZ.w", "stop")
    tokens = [token for event in events if isinstance(event, Step) for token in event.tokens]
    assert "".join(token.text for token in tokens if token.thinking) == report.thinking
    assert "".join(token.text for token in tokens if not token.thinking) == report.text
    assert [token.id for token in tokens] == report.token_ids
    assert "".join(token.kind for token in tokens) == report.kinds
    sides = "".join("T" if token.thinking else "A" for token in tokens)
    assert sides.strip("TA") == "" and "AT" not in sides and sides.endswith("A" * 5)


def test_stop_strings_and_limits(engine: Engine, thinker: Path) -> None:
    stopped = ask(engine, thinker, stop=["b", "Z."])
    assert (stopped.thinking, stopped.text, stopped.finish) == ("abé", "XY", "stop")
    short = ask(engine, thinker, max_tokens=3)
    assert (short.thinking, short.text, short.finish) == ("a", "", "length")
    assert len(short.token_ids) == len(short.kinds) == 3


def test_raw_text_is_not_split(engine: Engine, thinker: Path) -> None:
    request = Generate(
        1,
        ModelChoice(model=str(thinker), dtype="fp32", device="cpu"),
        prompt="Say it\n",
        sampling=Sampling(temperature=0, max_tokens=40),
        drafter=DrafterChoice(name="none"),
    )
    report = engine.generate(request, lambda event: None, toys.Still())
    assert (report.thinking, report.text) == ("", "\rabé\t XYZ.w")


def test_a_block_that_the_template_opens(engine: Engine, tmp_path: Path) -> None:
    closed = reciting(tmp_path / "closed", OPENED, "ab", "</think>", "XY")
    report = ask(engine, closed)
    assert (report.thinking, report.text, report.finish) == ("ab", "XY", "stop")
    never = reciting(tmp_path / "never", OPENED, "abc")
    report = ask(engine, never)
    assert (report.thinking, report.text, report.finish) == ("abc", "", "stop")


def test_thinking_can_be_asked_for_or_not(engine: Engine, thinker: Path, tmp_path: Path) -> None:
    heard: list = []
    on, off = (ask(engine, thinker, think=think, say=heard) for think in (True, False))
    assert off.prompt_tokens > on.prompt_tokens
    assert (on.thinking, on.text) == ("abé", "XYZ.w")
    assert not [event for event in heard if isinstance(event, Notice)]
    deaf = toys.checkpoint(tmp_path / "deaf")
    for _ in range(2):
        ask(engine, deaf, think=False, say=heard, max_tokens=2)
    (notice,) = [event for event in heard if isinstance(event, Notice)]
    assert "no switch for thinking" in notice.text


def test_the_template_decides_what_stays_of_a_thought(engine: Engine, thinker: Path) -> None:
    model = engine.load(ModelChoice(model=str(thinker), dtype="fp32", device="cpu"), 1, lambda e: None, lambda: False)
    assert model.tokenizer.template is not None
    said = [Message("user", "Q"), Message("assistant", "A.", "Hm.")]
    shown = model.tokenizer.template.render(said, add_generation_prompt=False)
    assert shown.endswith("assistant\n<think>\nHm.\n</think>\n\nA.<|im_end|>\n")
    dropped = model.tokenizer.template.render([*said, Message("user", "R")])
    assert dropped.endswith("assistant\nA.<|im_end|>\n<|im_start|>user\nR<|im_end|>\n<|im_start|>assistant\n")


# ---------------------------------------------------------------------------------------------------- the next turn


@pytest.mark.parametrize(
    ("template", "think"), [(QWEN, None), (OPENED, None), (SWITCHED, False)], ids=["qwen3", "opened", "switched off"]
)
@pytest.mark.parametrize("make", [rows, convolving], ids=["rows", "states"])
def test_the_next_turn_reuses_all_up_to_the_answer(
    make: Callable[[Path], Path], template: str, think: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thought goes, so what both prompts share ends at the generation prompt; all of that is kept."""
    folder = with_template(make(tmp_path / "model"), template)
    kept: list[int] = []
    reuse = ChatCache.reuse
    monkeypatch.setattr(ChatCache, "reuse", lambda cache, ids: kept.append(reuse(cache, ids)) or kept[-1])
    engine = Engine()
    first = [Message("user", "Tell me one thing")]
    then = [*first, Message("assistant", "That thing.", "I think, therefore."), Message("user", "Another")]
    ask(engine, folder, *first, max_tokens=12, think=think)
    again = ask(engine, folder, *then, max_tokens=12, think=think)
    assert engine.model is not None
    tokenizer = engine.model.tokenizer
    assert tokenizer.template is not None
    question = tokenizer.encode(tokenizer.template.render(first, add_generation_prompt=False))
    question = tokenizer.encode("Quiet. " if template == SWITCHED else "") + question
    assert kept[0] == 0 and len(question) <= kept[1] <= len(question) + 20
    assert again.token_ids == ask(Engine(), folder, *then, max_tokens=12, think=think).token_ids
