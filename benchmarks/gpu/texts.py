"""The same text from every path: on this device and on the CPU, captured and not, plain and with every form of drafter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import shapes
import torch
import toys
from rig import DEVICE, GPU, Figures, capture

from outrider.core.decode.round_result import RoundResult
from outrider.core.drafting import Committed, Drafter
from outrider.core.drafting.decoder_state import DecoderState
from outrider.core.model.capture import Capture
from outrider.core.model.decoder import Decoder
from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.model.model import TargetModel
from outrider.core.sampling.device import SamplingTensors, kind_of
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import Sampler, Settings
from outrider.core.session.chat_cache import ChatCache
from outrider.drafters.draft_model import ModelDrafter
from outrider.drafters.prompt_lookup import Lookup

CPU = torch.device("cpu")
CONTEXT, TOKENS, VOCAB = 256, 32 if GPU else 12, 256
TIE = 2e-3  # between the two best logits, which fall the other way in another order of sums
KINDS = tuple(shapes.TINY) if GPU else ("normed", "delta")
SETTINGS = {"greedy": toys.GREEDY, "whole": toys.SAMPLED, "nucleus": Settings(temperature=0.8, top_p=0.9)}
PROMPT = [int(i) for i in torch.randint(3, VOCAB, (140 if GPU else 20,), generator=torch.Generator().manual_seed(1))]

Made = Callable[[], Drafter | None]


class Bigram(toys.Bigram):
    """The toys' drafter of the device form, on this device."""

    def __init__(self) -> None:
        super().__init__(VOCAB, device=True)
        self.reset()

    def reset(self) -> None:
        """As `Drafter`."""
        super().reset()
        self.after, self.newest = self.after.to(DEVICE), self.newest.to(DEVICE)

    def advance(self, step: Committed) -> None:
        """As `Drafter`."""
        super().advance(replace(step, tokens=step.tokens.to(DEVICE)))


def drafters(truth: list[int], like: Decoder, graphs: Capture | None) -> dict[str, Made]:
    """One of every form; `truth` is what some of them know."""

    def knows() -> toys.Knows:
        return toys.Knows(len(PROMPT), truth, right=2, vocab=VOCAB)

    made: dict[str, Made] = {
        "none": lambda: None,
        "chain": knows,
        "tree": lambda: toys.Bushy(knows(), turn=1),
        "states": toys.Listener,
        "device": Bigram,
    }
    if GPU:
        made |= {"lookup": Lookup, "draft model": lambda: ModelDrafter(DecoderState(like, CONTEXT + 48, graphs), VOCAB)}
    return made


def of_kind(kind: str) -> Callable[[Figures], None]:
    """The check of one kind of mixer."""

    def check(figures: Figures) -> None:
        here, there = (
            shapes.decoder(shapes.TINY[kind], WeightFormat(torch.float32, device), CONTEXT, 3)
            for device in (DEVICE, CPU)
        )
        figures["texts"] = figures["ties"] = 0
        for name, settings in SETTINGS.items():
            if GPU or name != "whole":
                _texts(name, settings, (here, there), figures)

    return check


def _texts(name: str, settings: Settings, decoders: tuple[Decoder, Decoder], figures: Figures) -> None:
    here, there = decoders
    reference = shapes.target(there, CONTEXT, None)
    want = _answer(reference, None, settings)
    modes = {"captured": capture(), "lane": Capture(), "steps": None} if GPU else {"captured": capture()}
    for mode, recorder in modes.items():
        target = shapes.target(here, CONTEXT, recorder)
        for drafter, make in drafters(want, here, recorder).items():
            _same(_answer(target, make(), settings), want, reference, (f"{name}, {drafter}, {mode}", figures))
        if mode == "captured":
            _captured(target, settings, figures)


def _answer(target: TargetModel, drafter: Drafter | None, settings: Settings) -> list[int]:
    notes: list[str] = []
    guarded = None if drafter is None else toys.guard(drafter, notes=notes)
    target.rewind(0)
    found = toys.answer(ChatCache(target), PROMPT, guarded, settings=settings, limit=TOKENS)
    assert not notes, notes
    return found.token_ids


def _same(got: list[int], want: list[int], reference: TargetModel, said: tuple[str, Figures]) -> None:
    what, figures = said
    figures["texts"] += 1
    if got == want:
        return
    at = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), min(len(got), len(want)))
    reference.rewind(0)
    best = reference.forward(torch.tensor(PROMPT + want[:at]), last=True).logits[0].topk(2).values
    gap = float(best[0] - best[1])
    assert what.startswith("greedy") and gap < TIE, f"{what}: differs at token {at}, where the gap is {gap:.2e}"
    figures["ties"] += 1


def _captured(target: TargetModel, settings: Settings, figures: Figures) -> None:
    """Passes were recorded, and another answer records no more."""
    assert target.graph_runner is not None
    found = target.graph_runner.capture
    figures["graphs"] = found.count
    assert found.trouble is None, found.trouble
    assert found.count > 0, "nothing was captured"
    _answer(target, None, settings)
    assert found.count == figures["graphs"], "an answer like one before was captured anew"


def exact(kind: str) -> Callable[[Figures], None]:
    """The check of exact mode: rows that decode have the same bits whoever drafts, and so have texts of rounds in the air."""

    def check(figures: Figures) -> None:
        figures["rows"] = 0
        for dtype in (torch.bfloat16, torch.float32) if GPU else (torch.float32,):
            decoder = shapes.decoder(shapes.TINY[kind], WeightFormat(dtype, DEVICE), CONTEXT, 3)
            recorder = capture()
            target = TargetModel(decoder, shapes.info(decoder), CONTEXT, recorder, exact=7)
            want, rows = _rows(target, None)
            for name, make in drafters(want, decoder, recorder).items():
                got, found = _rows(target, make())
                said = f"{dtype}, {name}"
                assert got == want, f"{said}: another text"
                assert found.keys() >= rows.keys(), f"{said}: a row is missing"
                off = [at for at, row in rows.items() if not torch.equal(found[at], row)]
                assert not off, f"{said}: the bits of {len(off)} of {len(rows)} rows differ, first at {off[0]}"
                figures["rows"] += len(rows)
                assert _answer(target, make(), toys.GREEDY) == want, f"{said}: another text from rounds in the air"

    return check


def _rows(target: TargetModel, drafter: Drafter | None) -> tuple[list[int], dict[int, torch.Tensor]]:
    """The text of an answer, and the logits [V] behind each token by its position."""
    rows: dict[int, torch.Tensor] = {}
    target.rewind(0)
    cache = ChatCache(target)

    def watch(done: RoundResult, sampler: Sampler) -> None:
        first = len(cache.tokens) - len(done.tokens)
        rows.update({first + index: done.logits[row].clone() for index, row in enumerate(done.rows)})

    guarded = None if drafter is None else toys.guard(drafter)
    found = toys.answer(cache, PROMPT, guarded, limit=TOKENS, watch=watch)
    last = len(PROMPT) + len(found.token_ids)
    return found.token_ids, {at: row for at, row in rows.items() if at < last}  # what lies beyond, a draft decides


def noise_and_choices(figures: Figures) -> None:
    """The hash gives the same bits here, and the device chooses what the host would."""
    vocab = 50_000 if GPU else 2_000
    there = Noise(3).uniform_all("target", 77, vocab, CPU)
    assert torch.equal(there, Noise(3).uniform_all("target", 77, vocab, DEVICE).cpu()), "the noise differs"
    logits = torch.randn(8, vocab, generator=torch.Generator().manual_seed(0)) * 3
    kinds = {**SETTINGS, "top_k": Settings(temperature=0.8, top_k=40), "min_p": Settings(temperature=0.9, min_p=0.05)}
    for name, settings in kinds.items():
        noise, kind = Noise(3), kind_of(settings)
        want = Sampler(settings, noise).chain(logits, 5).tolist()
        assert Sampler(settings, noise).chain(logits.to(DEVICE), 5).tolist() == want, name
        assert kind is not None
        tensors = SamplingTensors.on(DEVICE)
        tensors.set(settings, noise)
        positions = torch.arange(5, 13, device=DEVICE)
        choice, sure = tensors.like(kind, sure=True).choose(logits.to(DEVICE), positions)
        assert bool(sure.all()), f"{name}: not sure"
        assert choice.tolist() == want, f"{name}: {choice.tolist()} on the device, {want} on the host"
    figures["settings"] = len(kinds)
