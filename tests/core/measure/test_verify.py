"""The job behind `outrider verify`: what is the same, where an answer parts from the plain one, near-ties and mistakes."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from safetensors.torch import load_file, save_file

from outrider.core.base.errors import DrafterError, ModelError, UsageError
from outrider.core.base.protocol import BenchPrompt, DrafterChoice, ModelChoice, Progress, Sampling, Verify
from outrider.core.decode import rounds
from outrider.core.drafting import Context, Draft, Drafter, Fit, Match, ModelInfo, Shape, Stateless, registry
from outrider.core.measure import verify
from outrider.core.model.cache.states import KVCache
from outrider.core.session.chat_cache import ChatCache
from outrider.core.session.engine import Engine

PROMPTS = [BenchPrompt("one", "a", ["abc"]), BenchPrompt("two", "a", ["hello", "and more"])]
ANSWERS = 3  # turns of these
LIMIT = 12
SPOKEN = {256: -100.0, 257: -100.0, 258: -100.0}  # no control tokens


class Same(Stateless):
    """The newest token again and again, which the toy likes often enough."""

    shape = Shape(nodes=8, depth=8)

    def propose(self, context: Context) -> Draft | None:
        return Draft(torch.full((context.nodes,), context.tokens[-1]))


class Method:
    """Rides on everything."""

    api = 1

    def matches(self, model: ModelInfo) -> Match:
        return Match(Fit.ANY, "fits")

    def load(self, target: Any, match: Match, options: Mapping[str, object]) -> Drafter:
        return Same()


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [importlib.metadata.EntryPoint(name, f"{__name__}:Method", registry.GROUP) for name in ("same", "again")]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.checkpoint(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens 2 i and 2 i + 1 always have the same logit."""
    path = toys.checkpoint(tmp_path_factory.mktemp("models") / "tied")
    tensors = load_file(path / "model.safetensors")
    head = tensors["lm_head.weight"]
    head[1:256:2] = head[0:256:2]
    save_file(tensors, path / "model.safetensors")
    return path


def checked(engine: Engine, folder: Path, *names: str, **more: Any) -> dict[str, Any]:
    choice = ModelChoice(
        model=str(folder), dtype=more.pop("dtype", "fp32"), device="cpu", exact=more.pop("exact", None)
    )
    tokens = more.pop("tokens", 4)
    drafters = [DrafterChoice(name=name, tokens=tokens) for name in names or ("same",)]
    sampling = more.pop("sampling", Sampling(max_tokens=LIMIT))
    say, cancelled = more.pop("say", lambda event: None), more.pop("cancelled", lambda: False)
    request = Verify(
        id=1, model=choice, prompts=more.pop("prompts", PROMPTS), drafters=drafters, sampling=sampling, **more
    )
    return verify.run(engine, request, say, cancelled)


def mislead(monkeypatch: pytest.MonkeyPatch, other: Callable[[int], int], at: int = 0) -> None:
    """From the `at`-th checked draft on the engine says another token than the target's own."""
    honest, seen = rounds.accept, [0]

    def careless(*words: Any, **more: Any) -> Any:
        taken = honest(*words, **more)
        seen[0] += bool(len(words[1]))
        if not len(words[1]) or seen[0] <= at:
            return taken
        return replace(taken, tokens=torch.tensor([*taken.tokens[:-1], other(int(taken.tokens[-1]))]))

    monkeypatch.setattr(rounds, "accept", careless)


@pytest.mark.parametrize("exact", [None, 4])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_all_is_the_same(engine: Engine, folder: Path, dtype: str, exact: int | None) -> None:
    events: list[Any] = []
    data = checked(engine, folder, "same", "again", dtype=dtype, exact=exact, say=events.append)
    assert data["same"] and data["finished"] and not data["partings"]
    assert data["exact"] is (exact is not None)
    assert [(row["drafter"], row["mode"]) for row in data["drafters"]] == [
        *(("same", "greedy"), ("again", "greedy")),
        *(("same", "sampled"), ("again", "sampled")),
    ]
    assert all(row["answers"] == row["identical"] == ANSWERS for row in data["drafters"])
    assert all(0 < row["tokens"] <= ANSWERS * LIMIT and row["passes"] for row in data["drafters"])
    sampling = data["settings"]["sampling"]
    assert sampling["greedy"]["temperature"] == 0
    assert sampling["sampled"] == {
        "temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0, "max_tokens": LIMIT
    }  # fmt: skip
    bar = [event for event in events if isinstance(event, Progress) and event.phase == "verify"]
    assert [event.done for event in bar] == list(range(2 * 3 * ANSWERS))  # plain answers once for all drafters
    assert {event.total for event in bar} == {2 * 3 * ANSWERS}
    assert {event.note for event in bar} >= {"one, greedy, plain", "two, sampled, again"}


def test_drafters_draft_in_every_round_whether_it_pays_or_not(engine: Engine, folder: Path) -> None:
    """`same` proposes 8 tokens in each pass but the last ones, though a policy would soon leave that."""
    long = Sampling(max_tokens=50, logit_bias=SPOKEN)
    data = checked(engine, folder, tokens=None, prompts=PROMPTS[:1], sampling=long)
    assert data["same"]
    pinned = checked(engine, folder, tokens=8, prompts=PROMPTS[:1], sampling=long)
    assert [row["passes"] for row in data["drafters"]] == [row["passes"] for row in pinned["drafters"]]


def test_a_mistake_is_told_with_its_place_and_gaps(
    engine: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mislead(monkeypatch, lambda token: (token + 1) % 250)
    data = checked(engine, folder, sampling=Sampling(max_tokens=LIMIT, temperature=0.0))
    assert not data["same"] and list(data["settings"]["sampling"]) == ["greedy"]
    (row,) = data["drafters"]
    assert (row["identical"], row["differences"], row["near_ties"], row["unchecked"]) == (0, ANSWERS, 0, 0)
    first = data["partings"][0]
    assert (first["drafter"], first["mode"], first["prompt"], first["turn"]) == ("same", "greedy", "one", 0)
    assert first["verdict"] == "difference" and first["token"] >= 1
    assert first["drafted"]["id"] == (first["plain"]["id"] + 1) % 250 and first["drafted"]["text"]
    assert first["gap"] > 0.05
    assert first["plain"]["gap"] == pytest.approx(first["gap"], abs=1e-3)
    assert first["drafted"]["gap"] == pytest.approx(first["gap"], abs=1e-3)
    assert [one["turn"] for one in data["partings"]] == [0, 0, 1]


def test_an_answer_that_ends_early_parts_too(engine: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mislead(monkeypatch, lambda token: 258)  # EOS
    data = checked(engine, folder, prompts=PROMPTS[:1], sampling=Sampling(max_tokens=LIMIT, temperature=0.0))
    (one,) = data["partings"]
    assert (one["drafted"]["id"], one["drafted"]["text"]) == (None, "") and one["plain"]["id"] is not None
    assert one["verdict"] == "difference" and one["drafted"]["gap"] is not None


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("exact", [None, 4])
def test_near_ties_are_no_mistakes_but_in_exact_mode(
    engine: Engine, tied: Path, dtype: str, exact: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twins have the same logit: greedy either is as good. With noise they are apart."""
    mislead(monkeypatch, lambda token: token ^ 1)
    greedy = Sampling(max_tokens=LIMIT, temperature=0.0, logit_bias=SPOKEN)
    data = checked(engine, tied, prompts=PROMPTS[:1], dtype=dtype, exact=exact, sampling=greedy)
    (row,), (one,) = data["drafters"], data["partings"]
    assert one["plain"]["id"] ^ 1 == one["drafted"]["id"]
    assert one["plain"]["gap"] == 0
    if exact is None:
        assert data["same"] and (row["near_ties"], row["differences"]) == (1, 0)
        assert one["verdict"] == "near-tie" and one["gap"] == 0
        assert engine.model is not None and engine.model.loaded.dtype == "float32"
    else:
        assert not data["same"] and (row["near_ties"], row["differences"]) == (0, 1)
        assert one["verdict"] == "difference" and one["gap"] is None
    data = checked(
        engine, tied, prompts=PROMPTS[:1], dtype=dtype, sampling=Sampling(max_tokens=LIMIT, logit_bias=SPOKEN)
    )
    sampled = [one for one in data["partings"] if one["mode"] == "sampled"]
    assert [one["verdict"] for one in sampled] == ["difference"] and sampled[0]["gap"] > 0.05


def test_what_cannot_be_loaded_in_fp32_is_not_called_the_same(
    engine: Engine, tied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mislead(monkeypatch, lambda token: token ^ 1)
    load = engine.load

    def small(choice: ModelChoice, *words: Any) -> Any:
        if choice.dtype == "fp32":
            raise ModelError("It does not fit.", "Buy memory.")
        return load(choice, *words)

    monkeypatch.setattr(engine, "load", small)
    greedy = Sampling(max_tokens=LIMIT, temperature=0.0, logit_bias=SPOKEN)
    data = checked(engine, tied, prompts=PROMPTS[:1], dtype="bf16", sampling=greedy)
    assert data["finished"] and not data["same"] and data["drafters"][0]["unchecked"] == 1
    assert data["partings"][0]["verdict"] == "unchecked"
    assert data["partings"][0]["why"] == "The model could not be loaded in fp32: It does not fit."


def test_a_model_without_a_chat_template_continues_the_turns(engine: Engine, tmp_path: Path) -> None:
    folder = toys.checkpoint(tmp_path / "base")
    (folder / "tokenizer_config.json").write_text("{}")
    data = checked(engine, folder)
    assert data["same"] and all(row["answers"] == ANSWERS for row in data["drafters"])


@pytest.mark.parametrize("stop", [1, 60])
def test_stopped_early(engine: Engine, folder: Path, stop: int) -> None:
    asked = [0]
    engine.load(ModelChoice(model=str(folder), dtype="fp32", device="cpu"), 1, lambda event: None, lambda: False)

    def cancelled() -> bool:
        asked[0] += 1
        return asked[0] > stop

    data = checked(engine, folder, cancelled=cancelled)
    assert not data["finished"] and not data["same"]
    answers = sum(row["answers"] for row in data["drafters"])
    assert answers < 2 * ANSWERS and (answers > 0) is (stop == 60)


def test_rules(engine: Engine, folder: Path) -> None:
    data = checked(engine, folder, rule="rejection")
    assert data["same"] and {row["mode"] for row in data["drafters"]} == {"greedy"}
    with pytest.raises(UsageError, match="lossy"):
        checked(engine, folder, rule="typical")


def test_what_cannot_be_verified(engine: Engine, folder: Path) -> None:
    with pytest.raises(UsageError, match="no prompts"):
        checked(engine, folder, prompts=[])
    with pytest.raises(DrafterError, match="no drafter 'nobody'"):
        checked(engine, folder, "nobody")
    with pytest.raises(UsageError, match="--draft-tokens must be from 1 to 63, not 64"):
        checked(engine, folder, exact=64)


def test_a_chat_behind_the_cache_is_compared_with_one_that_is_read_anew(engine: Engine, folder: Path) -> None:
    events: list[Any] = []
    data = checked(engine, folder, "same", say=events.append)
    rows = data["chat"]["drafters"]
    assert [(row["drafter"], row["flow"]) for row in rows] == [
        (name, flow) for name in ("none", "same") for flow in ("turn", "regenerate", "edit")
    ]
    assert [(row["answers"], row["identical"]) for row in rows] == [(3, 3), (1, 1), (1, 1)] * 2
    assert not data["chat"]["partings"] and data["same"]
    bar = [event for event in events if isinstance(event, Progress) and event.phase == "chat"]
    assert [(event.done, event.total) for event in bar] == [(done, 10) for done in range(10)]


def test_a_cache_that_is_not_what_a_prefill_leaves_is_found_out(
    engine: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is reused is spoilt; the answers that reuse nothing are right."""
    whole = ChatCache.reuse

    def spoiling(self: ChatCache, ids: Any) -> int:
        shared = whole(self, ids)
        for state in self.target.cache.states:
            if isinstance(state, KVCache):
                state.parts[0][:shared] *= -3
        return shared

    monkeypatch.setattr(ChatCache, "reuse", spoiling)
    data = checked(engine, folder, "same")
    assert not data["same"] and not data["partings"]
    assert {one["flow"] for one in data["chat"]["partings"]} <= {"turn", "regenerate", "edit"}
    wrong = [row for row in data["chat"]["drafters"] if row["differences"]]
    assert wrong and all(row["answers"] == row["identical"] + row["differences"] + row["near_ties"] for row in wrong)
