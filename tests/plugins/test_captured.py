"""Drafters whose steps are recorded once and replayed: every draft is the one that is made without, round after round."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import dflash_files as files
import eagles
import golden
import layers
import pairs
import peagles
import pytest
import torch
import toys
from replay import Replay
from safetensors.torch import save_file
from torch import Tensor

from outrider.core.drafting import Committed, Context, Draft, Drafter, Fit, Match, Method
from outrider.core.drafting.decoder_state import DecoderState
from outrider.core.formats.checkpoint import open_checkpoint
from outrider.core.model.cache.states import KVCache
from outrider.core.model.capture import Capture
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel
from outrider.core.sampling.sample import Settings
from outrider.core.session.chat_cache import ChatCache
from outrider.drafters import draft_model, layerskip
from outrider.drafters.dflash import DFlash
from outrider.drafters.eagle import Eagle
from outrider.drafters.medusa import draft as medusa
from outrider.drafters.medusa.format import open_heads
from outrider.drafters.medusa.heads import read_heads
from outrider.drafters.mtp import Mtp

PROMPT = [5, 9, 13, 9, 5, 9, 13]
DISPATCHED = [name for name in golden.NAMES if not name.endswith("mxfp4")]  # `Replay` sees no product written in C
FILTERED = Settings(temperature=0.9, top_p=0.95)


def but_one(names: Iterable[Any], first: Any) -> list[Any]:
    """`first` always, the others in the thorough suite."""
    return [first, *(pytest.param(name, marks=pytest.mark.thorough) for name in names if name != first)]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes read no more than they need, as without fused kernels, in steps that a short conversation goes through."""
    monkeypatch.setattr("outrider.core.model.graph_runner.LEAST_END", 32)
    for place in ("steps", "decoder"):
        monkeypatch.setattr(f"outrider.core.model.{place}.reads_what_is_there", lambda mixers, like: False)


class Heard:
    """A drafter whose drafts are written down: the conversation, the draft, and all logits [V] that it was drawn from."""

    def __init__(self, inner: Drafter) -> None:
        self.inner, self.needs, self.shape = inner, inner.needs, inner.shape
        self.reset, self.rewind, self.close, self.fork = inner.reset, inner.rewind, inner.close, inner.fork
        self.advance = inner.advance
        self.rounds: list[tuple[list[int], Draft | None, Tensor]] = []

    def propose(self, context: Context) -> Draft | None:
        rows = [torch.empty(0)]

        def sample(logits: Tensor, position: int, path: Sequence[int]) -> Tensor:
            rows.extend(logits.clone())
            return context.sample(logits, position, path)

        def to_probs(logits: Tensor, path: Sequence[int]) -> Tensor:
            rows.append(logits.clone())
            return context.to_probs(logits, path)

        draft = self.inner.propose(replace(context, sample=sample, to_probs=to_probs))
        self.rounds.append((list(context.tokens), draft, torch.cat(rows)))
        return draft


def answers(target: TargetModel, drafter: Heard, prompts: Sequence[Sequence[int]], turns: int) -> Iterator[list[int]]:
    """One conversation: prompts under each rule and temperature, of the first one also turns behind what was said."""
    cache, guarded = ChatCache(target), toys.guard(drafter)
    for number, prompt in enumerate(prompts):
        settings, rule = ((toys.GREEDY, "match"), (FILTERED, "match"), (FILTERED, "rejection"))[number % 3]
        ids = list(prompt)
        for turn in range(1 if number else turns):
            told = toys.answer(cache, ids, guarded, settings=settings, rule=rule, limit=10, tokens=(4, 6, 1)[turn % 3])
            assert not guarded.failed
            yield told.token_ids
            ids = [*ids, *told.token_ids[: 8 - turn], 4, turn]


def same_rounds(want: Heard, got: Heard, least: int) -> None:
    """Tokens, parents, laws and logits of all drafts."""
    assert len(got.rounds) == len(want.rounds)
    some = 0
    for (tokens, plain, rows), (tokens_too, made, rows_too) in zip(want.rounds, got.rounds, strict=True):
        assert tokens_too == tokens
        assert (made is None) == (plain is None)
        torch.testing.assert_close(rows_too, rows, atol=1e-4, rtol=1e-4)
        if plain is None or made is None:
            continue
        some += 1
        assert made.tokens.tolist() == plain.tokens.tolist()
        assert (made.parents is None) == (plain.parents is None)
        if plain.parents is not None and made.parents is not None:
            assert made.parents.tolist() == plain.parents.tolist()
        if plain.probs is not None and made.probs is not None:
            torch.testing.assert_close(made.probs, plain.probs, atol=1e-4, rtol=1e-4)
    assert some >= least


def same(
    target: TargetModel,
    make: Callable[[TargetModel], Drafter],
    prompts: Sequence[Sequence[int]] = (PROMPT, [5, 9, 13, 2, 40], [7]),
    turns: int = 2,
    least: int = 8,
) -> None:
    """Drafts with and without graphs: several answers, turns that go on from a part of what was said, edited prompts.

    The same once more needs no more captures; a fork has its own.
    """
    capture = Replay()
    plain, quick = Heard(make(target)), Heard(make(graphed(target, capture)))
    want = list(answers(target, plain, prompts, turns))
    assert list(answers(target, quick, prompts, turns)) == want
    same_rounds(plain, quick, least)
    captured = capture.count
    assert captured > 0
    for drafter in (plain, quick):
        assert list(answers(target, drafter, prompts[:1], turns)) == want[:turns]
    same_rounds(plain, quick, least + 1)
    assert capture.count == captured
    plain, quick = Heard(plain.fork()), Heard(quick.fork())
    for copy in (plain, quick):
        assert list(answers(target, copy, prompts[:1], 1)) == want[:1]
    same_rounds(plain, quick, 1)


def graphed(target: TargetModel, capture: Capture) -> TargetModel:
    """The same target with a graph runner."""
    return TargetModel(target.decoder, target.info, target.context, capture)


def tight(decoder: Callable[[int], TargetModel], make: Callable[[TargetModel], Drafter]) -> None:
    """At the end of a context, with drafts that reach beyond it."""
    for context in (24, 40):
        target = decoder(context)
        plain, quick = Heard(make(target)), Heard(make(graphed(target, Replay())))
        told = [
            toys.answer(ChatCache(target), PROMPT, toys.guard(drafter), limit=None, tokens=16)
            for drafter in (plain, quick)
        ]
        assert told[0].token_ids == told[1].token_ids
        assert len(told[0].token_ids) == context - len(PROMPT)
        same_rounds(plain, quick, 1)


def pieces(target: TargetModel, make: Callable[[TargetModel], Drafter], gap: int = 0) -> None:
    """Heard in pieces of every size, one with `gap` tokens without states; asked more than once, wrong turns taken back.

    A fork drafts on while the original goes another way.
    """
    heard: list[Heard] = []
    for capture in (None, Replay()):
        drafter = Heard(make(target if capture is None else graphed(target, capture)))
        ids, states = eagles.conversation(target, drafter.needs.hidden, 46)
        wrong, text = ids[:3].flip(0), ids.tolist()
        drafter.reset()
        for start, end in pairwise((0, 6, 7, 12, 13, 21, 40)):
            known = max(0, start - 1) + (gap if start == 7 else 0)
            drafter.advance(Committed(start, ids[start:end], eagles.NONE, states[known : end - 1]))
            for nodes in (4, 1, 7):
                drafter.propose(pairs.context(text[:end], nodes))
            drafter.advance(Committed(end, wrong, eagles.NONE, states[:3]))
            if end % 2:
                drafter.propose(pairs.context([*text[:end], *wrong.tolist()], 5))
            drafter.rewind(end)
        drafter.rewind(33)
        drafter.advance(Committed(33, ids[33:41], eagles.NONE, states[32:40]))
        drafter.propose(pairs.context(text[:41], 4))
        copy = Heard(drafter.fork())
        drafter.advance(Committed(41, wrong, eagles.NONE, states[3:6]))
        drafter.propose(pairs.context([*text[:41], *wrong.tolist()], 4))
        copy.propose(pairs.context(text[:41], 6))
        copy.advance(Committed(41, ids[41:44], eagles.NONE, states[40:43]))
        copy.propose(pairs.context(text[:44], 4))
        drafter.rounds += copy.rounds
        heard.append(drafter)
    same_rounds(heard[0], heard[1], 20)


def of_files(method: Method, folder: Path, options: dict[str, object]) -> Callable[[TargetModel], Drafter]:
    """How a target gets the drafter of a folder."""
    return lambda target: method.load(target, Match(Fit.EXACT, "", weights=str(folder)), options)


@pytest.mark.parametrize("gap", but_one([0, 2], 2))
@pytest.mark.parametrize("name", ["eagle", "p_eagle", "dflash", "mtp", "mtp_3", "heads"])
def test_pieces(name: str, gap: int, tmp_path: Path) -> None:
    if name.startswith("mtp"):
        folder = layers.checkpoint(tmp_path, 3 if name == "mtp_3" else 1)
        return pieces(layers.target(folder), of_files(Mtp(), folder, {}), gap)
    if name == "heads":
        target = layers.target(toys.checkpoint(tmp_path / "target"))
        return pieces(target, of_files(Mtp(), layers.parallel_heads(tmp_path / "heads"), {}), gap)
    if name == "dflash":
        folder = files.write(tmp_path, files.config(name), files.tensors(name))
        return pieces(toys.target(), of_files(DFlash(), folder, {"tree": False}), gap)
    folder = eagles.folder(tmp_path, "eagle3") if name == "eagle" else peagles.folder(tmp_path)
    return pieces(toys.target(layers=4), of_files(Eagle(), folder, {"tree": "chain"} if name == "eagle" else {}), gap)


def draft_of(target: TargetModel, seed: int, sharp: float = 1.0) -> draft_model.ModelDrafter:
    capacity = target.context + MAX_DRAFT_ROWS
    decoder = toys.decoder(seed, context=target.context, sharp=sharp)
    return draft_model.ModelDrafter(DecoderState(decoder, capacity, target.graphs), 48)


@pytest.mark.parametrize("seed", but_one([0, 1], 1))
def test_draft_model(seed: int) -> None:
    same(toys.target(), lambda target: draft_of(target, seed, 0.8))


def test_draft_model_at_the_brim() -> None:
    tight(lambda context: toys.target(context=context), lambda target: draft_of(target, 1))


@pytest.mark.parametrize("family", but_one(DISPATCHED, "qwen3_5"))
def test_draft_model_of_every_family(family: str) -> None:
    """States that cannot be cut, rings, latents, experts."""
    decoder = golden.decoder(golden.FOLDER / family, torch.float32, 256 + MAX_DRAFT_ROWS)

    def make(target: TargetModel) -> Drafter:
        return draft_model.ModelDrafter(DecoderState(decoder, 256 + MAX_DRAFT_ROWS, target.graphs), 48)

    same(toys.target(), make, prompts=(PROMPT,), least=4)


@pytest.mark.parametrize("kind", but_one(eagles.KINDS, "eagle3"))
def test_eagle(kind: str, tmp_path: Path) -> None:
    folder = eagles.folder(tmp_path, kind)
    same(toys.target(layers=4), lambda target: eagles.load(folder, target))


@pytest.mark.parametrize("kind", but_one(peagles.KINDS, "specforge"))
def test_p_eagle(kind: str, tmp_path: Path) -> None:
    folder = peagles.folder(tmp_path, kind)
    same(toys.target(layers=4), lambda target: eagles.load(folder, target))


@pytest.mark.parametrize("tree", but_one(["few", "many"], "few"))
def test_eagle_trees(tree: str, tmp_path: Path) -> None:
    """All levels are one capture; of many nodes the last levels are more than a kernel takes."""
    folder = eagles.folder(tmp_path, "eagle3")
    options: dict[str, Any] = {"tree": "auto", "depth": 4, "top_k": 3} if tree == "few" else {"tree": "tree"}
    same(toys.target(), lambda target: eagles.load(folder, target, **options), prompts=(PROMPT,), least=6)


@pytest.mark.parametrize("make", [eagles.folder, peagles.folder], ids=["eagle", "p_eagle"])
def test_eagle_at_the_brim(make: Any, tmp_path: Path) -> None:
    folder = make(tmp_path, "eagle3") if make is eagles.folder else make(tmp_path)
    tight(lambda context: toys.target(context=context), lambda target: eagles.load(folder, target))


@pytest.mark.parametrize("feedback", but_one(["postnorm", "prenorm"], "postnorm"))
@pytest.mark.parametrize("count", [1, 3])
def test_mtp(count: int, feedback: str, tmp_path: Path) -> None:
    target = layers.target(layers.checkpoint(tmp_path, count))
    same(target, lambda target: Mtp().load(target, Mtp().matches(target.info), {"feedback": feedback}))


@pytest.mark.parametrize("count", but_one([1, 3], 3))
def test_mtp_at_the_brim(count: int, tmp_path: Path) -> None:
    folder = layers.checkpoint(tmp_path, count)
    tight(
        lambda context: layers.target(folder, context),
        lambda target: Mtp().load(target, Mtp().matches(target.info), {}),
    )


@pytest.mark.parametrize("kind", but_one(files.KINDS, "speculators"))
def test_dflash(kind: str, tmp_path: Path) -> None:
    folder = files.write(tmp_path, files.config(kind), files.tensors(kind))
    same(toys.target(), lambda target: dflash(folder, target))


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"tree": True}, {"window": "anchor"}, {"confidence": 0.4}], ids=str)
def test_dflash_options(options: dict[str, object], tmp_path: Path) -> None:
    kind = "dspark" if "confidence" in options else "dflash"
    folder = files.write(tmp_path, files.config(kind), files.tensors(kind))
    same(toys.target(), lambda target: dflash(folder, target, **options))


@pytest.mark.parametrize("kind", but_one(files.KINDS, "dflash"))
def test_dflash_at_the_brim(kind: str, tmp_path: Path) -> None:
    folder = files.write(tmp_path, files.config(kind), files.tensors(kind))
    tight(lambda context: toys.target(context=context), lambda target: dflash(folder, target))


def dflash(folder: Path, target: TargetModel, **options: object) -> Drafter:
    """A chain unless it is said: by itself it would make trees where nothing is captured."""
    return DFlash().load(target, DFlash().check(target.info, str(folder)), {"tree": False, **options})


def test_medusa(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    weights = {}
    for head in range(3):
        weights[f"{head}.0.linear.weight"] = torch.randn(32, 32, generator=g) / 32**0.5
        weights[f"{head}.0.linear.bias"] = torch.randn(32, generator=g)
        weights[f"{head}.1.weight"] = torch.randn(48, 32, generator=g)
    save_file(weights, tmp_path / "medusa_lm_head.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"medusa_num_heads": 3}))

    def make(target: TargetModel) -> Drafter:
        opened = open_heads(tmp_path)
        return medusa.MedusaDrafter(read_heads(opened, target), 48)

    same(toys.target(), make)


def test_parallel_heads(tmp_path: Path) -> None:
    same(
        layers.target(toys.checkpoint(tmp_path / "target")),
        of_files(Mtp(), layers.parallel_heads(tmp_path / "heads"), {}),
    )


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", ["draft_model", "mtp", "dflash"])
def test_what_is_no_number_does_not_stay(name: str, quick: bool, tmp_path: Path) -> None:
    """A scratch row that nobody sees spoils one draft, not all that follow."""
    target = layers.target(layers.checkpoint(tmp_path)) if name == "mtp" else toys.target()
    here = graphed(target, Replay()) if quick else target
    if name == "draft_model":
        drafter = draft_of(here, 1)
        rows = drafter._state.cache.states[0]
    elif name == "mtp":
        drafter = of_files(Mtp(), tmp_path, {})(here)
        rows = drafter._state.rows[0]  # type: ignore[attr-defined]
    else:
        drafter = of_files(DFlash(), files.write(tmp_path, files.config(name), files.tensors(name)), {})(here)
        rows = drafter._state.rows[1]  # type: ignore[attr-defined]
    assert isinstance(rows, KVCache)
    ids, states = eagles.conversation(target, drafter.needs.hidden or (0,), 9)
    drafter.advance(Committed(0, ids, eagles.NONE, states))
    rows.parts[0][25] = torch.nan
    context = pairs.context(ids.tolist(), 3)
    assert drafter.propose(context) is None
    assert drafter.propose(context) is not None


@pytest.mark.parametrize("exits", but_one([(1, 3), (2,)], (1, 3)), ids=str)
def test_layerskip(exits: tuple[int, ...]) -> None:
    """It drafts in the target's own cache, so that each has a target to itself."""
    plain, quick = toys.target(layers=4), graphed(toys.target(layers=4), Replay())
    heard = [Heard(layerskip.LayerSkipDrafter(target, exits)) for target in (plain, quick)]
    for target, drafter in zip((plain, quick), heard, strict=True):
        list(answers(target, drafter, (PROMPT, [5, 9, 13, 2, 40], [7]), 2))
    same_rounds(heard[0], heard[1], 8)
    assert (
        quick.graph_runner is not None and set(exits) >= {layers for _, layers, _ in quick.graph_runner._early} != set()
    )


METHODS = {"eagle": Eagle(), "mtp": Mtp(), "dflash": DFlash(), "dspark": DFlash()}
GOLDENS = [path.name for path in sorted(pairs.FOLDER.glob("*")) if path.name.startswith(tuple(METHODS))]


@pytest.mark.parametrize("name", but_one(GOLDENS, "eagle3"))
def test_golden_rounds(name: str) -> None:
    """The reference's drafts, with a graph runner for the target too."""
    told = pairs.Pair(name)
    method = next(method for start, method in METHODS.items() if name.startswith(start))
    opened = open_checkpoint(told.folder)
    config, names = opened.config, frozenset(opened.names())
    opened.close()
    if isinstance(method, Mtp):
        told.info = replace(told.info, architecture=config["model_type"], config=config, tensors=names)
    target = graphed(told.target(), Replay())
    match = method.matches(told.info) if isinstance(method, Mtp) else method.check(told.info, str(told.folder))
    drafter = method.load(target, match, {"tree": "chain"} if isinstance(method, Eagle) else {})
    nodes = len(told.notes["prompts"][0]["rounds"][0]["draft"])
    report, watch = pairs.ride(told, drafter, 0, nodes, target)
    assert report.token_ids == told.texts[0]
    drafts = {root: draft.tokens.tolist() for root, draft, _ in watch.rows if draft is not None}
    wanted = {row["committed"]: row["draft"] for row in told.notes["prompts"][0]["rounds"]}
    whole = [root for root, draft in drafts.items() if len(draft) == nodes and root in wanted]
    assert len(whole) > 5
    assert [drafts[root] for root in whole] == [wanted[root] for root in whole]


@pytest.mark.parametrize("name", but_one(["eagle3", "eagle1"], "eagle3"))
def test_golden_trees(name: str) -> None:
    told = pairs.Pair(name)
    target = graphed(told.target(), Replay())
    match = Eagle().check(told.info, str(told.folder))
    drafter = Eagle().load(target, match, {"tree": "tree", "depth": 5, "top_k": 4})
    report, watch = pairs.ride(told, drafter, 0, 15, target, limit=len(told.texts[0]) + 18)
    assert report.token_ids[: len(told.texts[0])] == told.texts[0]
    drafts = {root: draft for root, draft, _ in watch.rows if draft is not None}
    for row in told.notes["prompts"][0]["tree_rounds"]:
        draft = drafts[row["committed"]]
        assert draft.parents is not None
        assert (draft.tokens.tolist(), (draft.parents + 1).tolist()) == (row["draft"], row["parents"])
