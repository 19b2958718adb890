"""Answers that are gone on with: as if they had never been cut, from token ids where they are known, else from the text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import toys
from talkers import MARKERS, OPENED, QWEN, convolving, reciting, rows, with_template

from outrider.core.base.errors import UsageError
from outrider.core.base.protocol import DrafterChoice, Generate, Message, ModelChoice, Report, Sampling, Step
from outrider.core.session.chat_cache import ChatCache
from outrider.core.session.engine import Engine

QUESTION = Message("user", "Say it")
GREEDY = {"temperature": 0.0}
DRAWN = {"temperature": 1.0, "seed": 5, "repeat_penalty": 1.1, "presence_penalty": 0.2}


def ask(
    engine: Engine, model: Path, *messages: Message, limit: int, drafter: str = "none", **more
) -> tuple[Report, list[Step]]:
    sampling = Sampling(max_tokens=limit, **more.pop("sampling", GREEDY))
    choice = DrafterChoice(name=drafter, tokens=4 if drafter != "none" else None)
    where = ModelChoice(model=str(model), dtype="fp32", device="cpu")
    request = Generate(1, where, messages=[QUESTION, *messages], sampling=sampling, drafter=choice, **more)
    said: list = []
    report = engine.generate(request, said.append, toys.Still())
    return report, [one for one in said if isinstance(one, Step)]


def joined(first: Report, then: Report, steps: list[Step]) -> tuple[str, str, list[int]]:
    """What the user sees of both parts."""
    stands = steps[0].stands or (len(first.text), len(first.thinking))
    text, thought = first.text[: stands[0]], first.thinking[: stands[1]]
    assert "".join(token.text for step in steps for token in step.tokens if not token.thinking) == then.text
    assert "".join(token.text for step in steps for token in step.tokens if token.thinking) == then.thinking
    return text + then.text, thought + then.thinking, first.token_ids + then.token_ids


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("template", [toys.CHATML, QWEN, OPENED], ids=["chatml", "qwen3", "opened"])
@pytest.mark.parametrize("make", [rows, convolving], ids=["rows", "states"])
def test_a_cut_answer_goes_on_as_if_it_had_not_been(
    make: Callable[[Path], Path], template: str, sampling: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, kept, reuse = with_template(make(tmp_path / "model"), template), [], ChatCache.reuse
    monkeypatch.setattr(ChatCache, "reuse", lambda cache, ids: kept.append(reuse(cache, ids)) or kept[-1])
    engine = Engine()
    whole, _ = ask(engine, model, limit=14, sampling=sampling)
    for cut in (1, 6, 13):
        engine.forget()
        first, _ = ask(engine, model, limit=cut, sampling=sampling)
        said = Message("assistant", first.text, first.thinking)
        then, steps = ask(
            engine, model, said, limit=14 - cut, sampling=sampling, drafter="prompt_lookup", continues=first.token_ids
        )
        assert joined(first, then, steps) == (whole.text, whole.thinking, whole.token_ids)
        assert kept[-1] == then.prompt_tokens - 1 == first.prompt_tokens + cut - 1 and then.finish == "length"


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reciting(tmp_path_factory.mktemp("thinker") / "model", QWEN, "<think>", "\rabé\t", "</think>", " XYZ.w")


def test_every_place_in_a_thought_and_in_the_answer(thinker: Path) -> None:
    """Markers, white space and half a character are held where the cut is, and are never told twice."""
    engine = Engine()
    whole, _ = ask(engine, thinker, limit=40)
    assert (whole.thinking, whole.text) == ("abé", "XYZ.w")
    taken_back = 0
    for cut in range(1, len(whole.token_ids)):
        first, _ = ask(engine, thinker, limit=cut)
        said = Message("assistant", first.text, first.thinking)
        then, steps = ask(engine, thinker, said, limit=40, continues=first.token_ids)
        assert joined(first, then, steps) == (whole.text, whole.thinking, whole.token_ids), cut
        assert then.finish == "stop"
        taken_back += steps[0].stands is not None
    assert taken_back == 1  # half of é was shown as a sign for no character


def test_without_token_ids_the_text_is_gone_on_with(thinker: Path, tmp_path: Path) -> None:
    engine = Engine()
    then, _ = ask(engine, thinker, Message("assistant", "XY", "abé"), limit=40, continues=[])
    assert (then.text, then.thinking) == ("Z.w", "")
    then, _ = ask(engine, thinker, Message("assistant", "", "ab"), limit=40, continues=[])
    assert (then.thinking, then.text) == ("é", "XYZ.w")
    inside = reciting(tmp_path / "model", OPENED, "ab", "</think>", "XY")
    then, _ = ask(engine, inside, Message("assistant", "", "a"), limit=40, continues=[])
    assert (then.thinking, then.text) == ("b", "XY")


@pytest.mark.parametrize("ids", [[3, 4], [100000]], ids=["of something else", "of another model"])
def test_token_ids_that_are_not_the_text_do_not_count(thinker: Path, ids: list[int]) -> None:
    then, _ = ask(Engine(), thinker, Message("assistant", "XY"), limit=40, continues=ids)
    assert then.text == "Z.w"


def test_what_cannot_be_gone_on_with(tmp_path: Path) -> None:
    model, engine = toys.checkpoint(tmp_path / "model", extra=MARKERS[:1]), Engine()
    with pytest.raises(UsageError, match="no answer at the end"):
        ask(engine, model, limit=4, continues=[])
    with pytest.raises(UsageError, match="no text"):
        ask(engine, model, Message("assistant", "", "Hm"), limit=4, continues=[])
