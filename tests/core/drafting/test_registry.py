"""Plugins may do anything; the engine goes on. Discovery, matching, loading and every guarded verb."""

from __future__ import annotations

import importlib.metadata
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import toys

from outrider.core.base.errors import DrafterError
from outrider.core.decode.rounds import Rounds
from outrider.core.drafting import Context, Draft, Fit, Match, ModelInfo, Needs, Shape, Stateless, active, registry
from outrider.core.drafting.read_only import Tokens, read_only
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import Sampler, Settings
from outrider.core.session.chat_cache import ChatCache

INFO = ModelInfo("toy", "llama", 48, 32, 2, "toy-48")
PROMPT = [5, 9, 13, 9, 5, 9, 13]


class Good:
    api = 1

    def matches(self, model: ModelInfo) -> Match:
        return Match(Fit.ANY, "fits")

    def load(self, target, match, options):
        return toys.Anything()


class RaisesInMatches(Good):
    def matches(self, model: ModelInfo) -> Match:
        raise ZeroDivisionError("no reason at all")


class RaisesInLoad(Good):
    def load(self, target, match, options):
        raise MemoryError


class RaisesInInit(Good):
    def __init__(self) -> None:
        raise ValueError("cannot be made")


class FromTheFuture(Good):
    api = 99


class NoMatch(Good):
    def matches(self, model: ModelInfo) -> Match:
        return "yes"  # type: ignore[return-value]


class Unfit(Good):
    def matches(self, model: ModelInfo) -> Match:
        return Match(Fit.NO, "made for another model")


class Waiting(Good):
    def matches(self, model: ModelInfo) -> Match:
        return Match(Fit.FAMILY, "needs --drafter-weights", ready=False)


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points that name the classes above, and one module that is not there."""
    names = ("Good", "RaisesInMatches", "RaisesInLoad", "RaisesInInit", "FromTheFuture", "NoMatch", "Unfit", "Waiting")
    points = [importlib.metadata.EntryPoint(name.lower(), f"{__name__}:{name}", registry.GROUP) for name in names]
    points.append(importlib.metadata.EntryPoint("missing", "no_such_module:Thing", registry.GROUP))
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    monkeypatch.setitem(__import__("sys").modules, __name__, __import__("sys").modules.get(__name__) or _this())


def _this():
    import types

    module = types.ModuleType(__name__)
    module.__dict__.update(globals())
    return module


@pytest.mark.usefixtures("plugins")
def test_survey_has_a_row_for_every_plugin() -> None:
    rows = {row.name: row for row in registry.survey(INFO)}
    assert rows["good"].fit == "any"
    assert rows["good"].usable
    assert rows["waiting"].fit == "family"
    assert not rows["waiting"].usable
    assert rows["unfit"].fit == "no"
    for name in ("raisesinmatches", "raisesininit", "fromthefuture", "nomatch", "missing"):
        assert rows[name].fit == "broken"
        assert not rows[name].usable
        assert name in rows[name].reason
    assert "no reason at all" in rows["raisesinmatches"].reason
    assert "no_such_module" in rows["missing"].reason
    assert "99" in rows["fromthefuture"].reason


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "no drafter 'nothing'"),
        ("missing", "no_such_module"),
        ("raisesinload", "MemoryError"),
        ("unfit", "made for another model"),
        ("waiting", "needs --drafter-weights"),
    ],
)
def test_loading_says_what_is_wrong(name: str, words: str) -> None:
    with pytest.raises(DrafterError, match=words) as caught:
        registry.load(name, toys.target(), {"weights": None}, print)
    assert caught.value.hint


def test_ours_are_found_through_their_entry_points() -> None:
    found = {entry.name: entry for entry in registry.entries()}
    assert {"prompt_lookup", "draft_model"} <= set(found)
    assert found["prompt_lookup"].trusted
    assert registry.match(found["prompt_lookup"], INFO).fit == Fit.ANY


@pytest.mark.parametrize("verb", ["advance", "propose"])
@pytest.mark.parametrize("after", [1, 4])
def test_a_failing_drafter_costs_a_round_and_the_answer_goes_on(verb: str, after: int) -> None:
    want = toys.answer(ChatCache(toys.target()), PROMPT)
    notes: list[str] = []
    guarded = toys.guard(toys.Broken(verb, after), notes=notes, name="wobbly")
    got = toys.answer(ChatCache(toys.target()), PROMPT, guarded)
    assert got.token_ids == want.token_ids
    assert guarded.failed
    assert len(notes) == 1
    assert "wobbly" in notes[0]
    assert "it broke" in notes[0]
    assert got.finish == "length"


class Proposes(Stateless):
    def __init__(self, draft: object, shape: Shape | None = None) -> None:
        self.draft, self.shape = draft, shape or Shape(nodes=4, depth=4)

    def propose(self, context: Context) -> Draft | None:
        return self.draft  # type: ignore[return-value]


FAIR = torch.full((2, 48), 1 / 48)
BAD = {
    "outside the vocabulary": Draft(torch.tensor([1, 48])),
    "outside the vocabulary, negative": Draft(torch.tensor([-1])),
    "5 tokens where 4": Draft(torch.tensor([1, 2, 3, 4, 5])),
    "no list of token ids": Draft(torch.tensor([0.5])),
    "no list of token ids, table": Draft(torch.tensor([[1, 2]])),
    "parents do not come before": Draft(torch.tensor([1, 2]), parents=torch.tensor([1, -1])),
    "another shape": Draft(torch.tensor([1, 2]), probs=FAIR[:1]),
    "probabilities that are none": Draft(torch.tensor([1, 2]), probs=FAIR * 2),
    "probabilities that are none, nan": Draft(torch.tensor([1, 2]), probs=FAIR * float("nan")),
    "probabilities that are none, zero": Draft(torch.tensor([1, 2]), probs=torch.eye(48)[:2]),
    "a confidence of another shape": Draft(torch.tensor([1, 2]), confidence=torch.tensor([0.5])),
    "a confidence of another shape, whole": Draft(torch.tensor([1, 2]), confidence=torch.tensor([0, 1])),
    "a confidence that is no chance": Draft(torch.tensor([1, 2]), confidence=torch.tensor([0.5, 1.1])),
    "a confidence that is no chance, nan": Draft(torch.tensor([1]), confidence=torch.tensor([torch.nan])),
    "failed in propose": "not a draft",
    "failed in propose, confidence": Draft(torch.tensor([1]), confidence=[0.5]),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("words", list(BAD))
def test_bad_drafts_are_told_and_never_reach_the_text(words: str) -> None:
    want = toys.answer(ChatCache(toys.target()), PROMPT)
    notes: list[str] = []
    guarded = toys.guard(Proposes(BAD[words]), notes=notes)
    got = toys.answer(ChatCache(toys.target()), PROMPT, guarded)
    assert got.token_ids == want.token_ids
    assert words.split(",")[0] in notes[0]
    assert guarded.failed


def test_what_a_drafter_says_of_itself_is_optional() -> None:
    drafter = toys.Anything()
    guarded = toys.guard(drafter)
    assert (guarded.free, guarded.block, guarded.device) == (False, False, False)
    drafter.free = drafter.block = True  # type: ignore[attr-defined]
    guarded = toys.guard(drafter)
    assert (guarded.free, guarded.block, guarded.device) == (True, True, False)


def test_confidence_reaches_the_round_that_verified_the_draft() -> None:
    """Of a tree on a target that takes none, that of the line which is verified."""
    held = torch.tensor([0.1, 0.2, 0.3, 0.4])
    tree = Draft(torch.tensor([1, 2, 3, 4]), torch.tensor([-1, -1, 0, 2]), confidence=held)
    target = toys.target()
    target.forward(PROMPT[:-1])
    target.commit(len(PROMPT) - 1)
    rounds = Rounds(target, list(PROMPT), Sampler(toys.GREEDY, Noise(1)))
    done = rounds.run(toys.guard(Proposes(tree)), 4)
    assert done.draft.confidences == held.tolist()
    line = toys.guard(Proposes(tree)).propose(rounds.draft_context(toys.guard(toys.Anything()), 4), 48, trees=False)
    assert line is not None and line.confidences == [held[node].item() for node in (0, 2, 3)]
    assert rounds.run(toys.guard(toys.Anything()), 4).draft.confidences is None
    assert rounds.run(None, 0).draft.confidences is None


def test_an_empty_draft_is_a_plain_pass() -> None:
    guarded = toys.guard(Proposes(Draft(torch.empty(0, dtype=torch.int64))))
    report = toys.answer(ChatCache(toys.target()), PROMPT, guarded)
    assert set(report.kinds) == {"P"}
    assert not guarded.failed


def test_a_drafter_that_fails_while_closing_is_told() -> None:
    class Sticky(toys.Anything):
        def close(self) -> None:
            raise OSError("will not go")

    notes: list[str] = []
    toys.guard(Sticky(), notes=notes).close()
    assert "will not go" in notes[0]


class Peeks(Stateless):
    """Knows the target's noise of the token after the next, and guesses only where that favours id 0."""

    def __init__(self) -> None:
        self.shape = Shape(nodes=1, depth=1)

    def propose(self, context: Context) -> Draft | None:
        later = int(context.sample(torch.zeros(1, 3), len(context.tokens) + 1, [])[0])
        return Draft(torch.tensor([later]))


@pytest.mark.thorough
def test_peeking_at_the_target_noise_gains_nothing_under_rejection() -> None:
    settings = Settings(temperature=1.0, top_p=1.0)
    model, n = toys.target(vocab=3, sharp=0.2), 1200
    first = model.forward([1, 2], last=True).logits[0].double().softmax(-1)
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(n):
        peeking = toys.guard(Peeks(), trusted=False)
        report = toys.answer(
            ChatCache(model), [1, 2], peeking, settings=settings, seed=seed, limit=4, rule="rejection", tokens=1
        )
        text = tuple(report.token_ids[:3])
        counts[text] = counts.get(text, 0) + 1
    chi = 0.0
    for a in range(3):
        model.commit(0)
        second = model.forward([1, 2, a], last=True).logits[0].double().softmax(-1)
        for b in range(3):
            third = model.forward([1, 2, a, b], last=True).logits[0].double().softmax(-1)
            for c in range(3):
                expected = n * float(first[a] * second[b] * third[c])
                chi += (counts.get((a, b, c), 0) - expected) ** 2 / expected
    assert chi < 26 + 5 * (2 * 26) ** 0.5


@pytest.mark.thorough
def test_probs_change_the_law_only_if_trusted() -> None:
    """A liar that tells other probabilities than it drew from: harmless untrusted, visible trusted (statistically)."""
    settings = Settings(temperature=1.0, top_p=1.0)
    vocab, n = 4, 1500
    truth = torch.zeros(vocab)
    counts = {True: torch.zeros(vocab), False: torch.zeros(vocab)}
    drawn = torch.tensor([0.97, 0.01, 0.01, 0.01], dtype=torch.float64)
    told = torch.tensor([0.01, 0.01, 0.01, 0.97], dtype=torch.float64)
    model = toys.target(vocab=vocab, sharp=0.3)
    for seed in range(n):
        truth[toys.answer(ChatCache(model), [1, 2], settings=settings, seed=seed, limit=2).token_ids[1]] += 1
        for trusted in (True, False):
            liar = toys.guard(toys.OneLaw(drawn, tells=told), trusted=trusted)
            report = toys.answer(
                ChatCache(model), [1, 2], liar, settings=settings, seed=seed, limit=3, rule="rejection", tokens=1
            )
            counts[trusted][report.token_ids[1]] += 1

    def distance(some: torch.Tensor) -> float:
        return float((some - truth).abs().sum() / n / 2)

    assert distance(counts[False]) < 0.06
    assert distance(counts[True]) > 0.15


# ---------------------------------------------------------------------------------------------------- hosted code


class Panic(BaseException):
    """As extensions in Rust raise it."""


RAISED = [SystemExit(3), KeyboardInterrupt(), Panic("index out of bounds"), MemoryError()]


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the engine process, which leaves Ctrl-C to its client."""
    monkeypatch.setattr(active.signal, "getsignal", lambda number: active.signal.SIG_IGN)


def raises(error: BaseException) -> Callable[..., Any]:
    def call(*some: object) -> Any:
        raise error

    return call


@pytest.mark.usefixtures("plugins", "deaf")
@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("verb", ["__init__", "matches", "load", "recipe", "free"])
def test_whatever_a_method_raises_stays_inside(
    verb: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = property(raises(error)) if verb in ("recipe", "free") else raises(error)
    monkeypatch.setattr(Good, verb, value, raising=False)
    rows = {row.name: row for row in registry.survey(INFO)}
    if verb == "load":
        with pytest.raises(DrafterError, match=f"good failed: {type(error).__name__}"):
            registry.load("good", toys.target(), {}, print)
    else:
        assert rows["good"].fit == "broken" and not rows["good"].usable
        assert type(error).__name__ in rows["good"].reason


@pytest.mark.usefixtures("deaf")
@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("verb", ["reset", "advance", "propose", "rewind", "fork", "close"])
def test_whatever_a_drafter_raises_stays_inside(verb: str, error: BaseException) -> None:
    drafter, notes = toys.Anything(), list[str]()
    setattr(drafter, verb, raises(error))
    guarded = active.GuardedDrafter("wild", drafter, True, notes.append)
    guarded.reset()
    report = toys.answer(ChatCache(toys.target()), PROMPT, guarded, limit=6)
    assert report.token_ids == toys.answer(ChatCache(toys.target()), PROMPT, limit=6).token_ids
    guarded.rewind(2)
    guarded.fork(notes.append)
    guarded.close()
    assert len(notes) == 1
    if isinstance(error, MemoryError) and verb != "close":
        assert f"wild ran out of memory in {verb}" in notes[0]
        return
    assert f"wild failed {'while closing' if verb == 'close' else 'in ' + verb}" in notes[0]
    assert type(error).__name__ in notes[0]


@pytest.mark.parametrize("verb", ["propose", "close"])
def test_where_ctrl_c_can_come_it_is_the_users(verb: str) -> None:
    drafter = toys.Anything()
    setattr(drafter, verb, raises(KeyboardInterrupt()))
    guarded = toys.guard(drafter)
    with pytest.raises(KeyboardInterrupt):
        toys.answer(ChatCache(toys.target()), PROMPT, guarded, limit=6)
        guarded.close()


def test_of_a_long_error_its_beginning_is_told() -> None:
    assert active.words_of(ValueError("first line\n  second line")) == "ValueError: first line second line"
    long = active.words_of(ValueError("why it failed\n" + "at some place\n" * 90))
    assert long.startswith("ValueError: why it failed at some") and len(long) < 330 and long.endswith("…")


class Writes(Stateless):
    """Tries to change what it may only read."""

    def __init__(self, target: Any, write: Callable[[Any, Context], object]) -> None:
        self.target, self.write, self.shape = target, write, Shape(4, 4)

    def propose(self, context: Context) -> Draft | None:
        with torch.inference_mode():
            self.write(self.target, context)
        return Draft(torch.tensor([1]))


WRITES: dict[str, Callable[[Any, Any], object]] = {
    "append": lambda target, context: context.tokens.append(5),
    "assign": lambda target, context: context.tokens.__setitem__(0, 5),
    "clear": lambda target, context: context.tokens.clear(),
    "fill": lambda target, context: target.kv(0)[1].fill_(3.0),
    "view": lambda target, context: target.kv(1)[0][:, 2:4].transpose(0, 1).zero_(),
    "index": lambda target, context: target.kv(0)[0].__setitem__(0, 1.0),
    "add": lambda target, context: target.kv(0)[0].__iadd__(1.0),
    "out": lambda target, context: torch.add(target.kv(0)[0], 1, out=target.kv(0)[0]),
    "halves": lambda target, context: target.kv(0)[0].chunk(2)[0].mul_(2),
    "each": lambda target, context: torch._foreach_mul_([target.kv(0)[0]], 0.0),  # pyright: ignore[reportPrivateImportUsage]
    "data": lambda target, context: target.kv(0)[0].data.zero_(),
    "inplace": lambda target, context: torch.nn.functional.relu(target.kv(0)[0], inplace=True),
    "numpy": lambda target, context: target.kv(0)[0].numpy().fill(0),
}


@pytest.mark.parametrize("way", list(WRITES))
def test_what_a_drafter_from_outside_may_only_read_it_cannot_write(way: str) -> None:
    want, cache, notes = toys.answer(ChatCache(toys.target()), PROMPT), ChatCache(toys.target()), list[str]()
    drafter = Writes(read_only(cache.target), WRITES[way])
    got = toys.answer(cache, PROMPT, toys.guard(drafter, trusted=False, notes=notes))
    assert got.token_ids == want.token_ids
    assert len(notes) == 1 and "failed in propose" in notes[0]


def test_what_is_read_can_be_used() -> None:
    target = toys.target()
    target.forward(PROMPT)
    target.commit(len(PROMPT))
    keys, values, length = target.kv(0)
    seen = read_only(target)
    k, v, count = seen.kv(0)
    assert count == length and torch.equal(k, keys) and torch.equal(v, values)
    scores = torch.softmax(k[:, :count] @ k[:, :count].transpose(1, 2), -1) @ v[:, :count]
    assert type(scores) is torch.Tensor
    scores.mul_(2)
    mine = k.clone()
    mine[0] = 7
    torch.zeros_like(keys).copy_(k)
    assert seen.vocab == target.vocab and seen.context == target.context  # type: ignore[attr-defined]
    for rows in (seen.embed, seen.embed_raw, seen.rows):
        before = rows(torch.tensor([1, 2])).clone()
        with torch.inference_mode():
            rows(torch.tensor([1, 2])).zero_()
        assert torch.equal(rows(torch.tensor([1, 2])), before)


def test_tokens_are_a_sequence() -> None:
    ids = [3, 1, 2]
    tokens = Tokens(ids)
    ids.append(4)
    assert (len(tokens), tokens[-1], tokens[1:3], list(tokens)) == (4, 4, [1, 2], [3, 1, 2, 4])
    assert 2 in tokens and list(reversed(tokens)) == [4, 2, 1, 3] and torch.tensor(tokens).tolist() == ids
    tokens[:].append(9)
    assert len(tokens) == 4


@pytest.mark.usefixtures("plugins")
def test_a_slow_plugin_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SLOW_MATCH", 0.0)
    rows = {row.name: row for row in registry.survey(INFO)}
    assert "it took 0.0 s to say so" in rows["good"].reason and rows["good"].seconds > 0
    monkeypatch.setattr(active, "SLOW_CALL", 0.01)
    monkeypatch.setattr("outrider.core.drafting.watching.LOOK", 0.001)
    notes, told = list[str](), threading.Event()

    def note(text: str) -> None:
        notes.append(text)
        told.set()

    drafter = toys.Anything()
    drafter.propose = lambda context: None if told.wait(5) else Draft(torch.tensor([1]))  # type: ignore[method-assign]
    guarded = active.GuardedDrafter("sluggish", drafter, False, note)
    guarded.reset()
    toys.answer(ChatCache(toys.target()), PROMPT, guarded, limit=4)
    assert len(notes) == 1 and "sluggish is slow: propose takes long" in notes[0]
    assert not guarded.failed


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("needs", "n", "no Needs"),
        ("needs", Needs(hidden=(3,)), "the state 3; the model's states go from 0 to 2"),
        ("needs", Needs(hidden=(0, -1)), "the state -1"),
        ("needs", Needs(hidden=("a",)), "the state 'a'"),  # type: ignore[arg-type]
        ("needs", Needs(kv=(2,)), "keys and values of layer 2; the model's layers go from 0 to 1"),
        ("needs", Needs(early=5), "the first 5 of 2 layers"),
        ("shape", Shape(0, 1), "drafts of 0 nodes"),
        ("shape", Shape("x", 1), "drafts of 'x' nodes"),  # type: ignore[arg-type]
        ("shape", property(raises(SystemExit())), "SystemExit"),
    ],
)
@pytest.mark.usefixtures("deaf")
def test_what_a_drafter_cannot_mean_is_refused_at_its_load(
    name: str, value: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = type("Odd", (toys.Anything,), {name: value, "__init__": lambda self: None})
    fair = {"needs": Needs(), "shape": Shape(4, 4)}
    for other in fair.keys() - {name}:
        setattr(made, other, fair[other])
    monkeypatch.setattr(Good, "load", lambda *some: made())
    with pytest.raises(DrafterError, match=words):
        registry.load("good", toys.target(), {}, print)
