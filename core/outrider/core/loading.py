"""From a `ModelChoice` to a model in memory: decoder, cache, tokenizer, defaults, and how every drafter fits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from . import finding
from .accept import Guess
from .answer import Conversation
from .drafting import ModelInfo
from .errors import Cancelled, ModelError
from .noise import Noise
from .policy import Policy
from .protocol import DrafterChoice, DrafterRow, Loaded, ModelChoice, Sampling
from .rounds import Rounds
from .sample import Sampler, fill
from .target.decoder import Decoder
from .target.linear import Form
from .target.load import choose_device, choose_dtype, load_decoder
from .target.model import SLACK, TargetModel
from .text.tokenizer import Tokenizer
from .weights import plan
from .weights.checkpoint import Checkpoint, info, open_checkpoint

BITS = {"int8": 8, "int4": 4}  # of --quantize

WIDTHS = (1, 8, 17, 2, 4)  # rows that are timed at load, in this order
CALIBRATION = 1.5  # seconds after which no further width, or number of threads, is begun
ALL_THREADS = torch.get_num_threads()  # what torch takes by itself

Tell = Callable[[str, float, float, str], None]  # phase, done, total, unit


@dataclass(slots=True)
class Model:
    """A target in memory with everything that belongs to it."""

    choice: ModelChoice
    tokenizer: Tokenizer
    talk: Conversation
    rows: list[DrafterRow]
    sampling: Sampling  # the model's own defaults
    loaded: Loaded
    policy: Policy
    slow: bool = False  # the user was told that its passes are not captured
    refused: list[DrafterChoice] = field(default_factory=list)  # choices that could not ride, and were told


class _Clock:
    """Seconds of each phase."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.phases[phase] = now - self._last
        self._last = now


def open_model(choice: ModelChoice, path: Path, tell: Tell, cancelled: Callable[[], bool]) -> Model:
    """Load the model at `path`. Raises ModelError, BrokenFileError, UsageError, Cancelled."""
    clock = _Clock()
    device = choose_device(choice.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # kernels are launched on the current one
    dtype = choose_dtype(choice.dtype, device)
    checkpoint = open_checkpoint(path)
    try:
        subject = plan.of_checkpoint(checkpoint)
        settings = plan.check(subject, plan.settle(subject, choice))
        context = settings.context
        tell("tokenizer", 0, 0, "")
        tokenizer = Tokenizer.from_checkpoint(checkpoint)
        clock.lap("tokenizer")
        form = Form(dtype, device, BITS.get(choice.quantize), plan.keep(subject, settings))
        decoder = _decoder(checkpoint, form, context, tell, cancelled)
        target = _target(choice, decoder, info(checkpoint), context)
        clock.lap("weights")
        generation = checkpoint.generation
    finally:
        checkpoint.close()
    tell("warm-up", 0, 0, "")
    own = Sampling(
        temperature=generation.get("temperature"), top_k=generation.get("top_k"), top_p=generation.get("top_p")
    )
    sampler = Sampler(fill(Sampling(), own), Noise(0))
    _choose_threads(target, sampler, choice.threads, cancelled)
    policy = _calibrated(target, sampler, cancelled)
    clock.lap("warm-up")
    rows_of_drafters = finding.near(target.info)
    loaded = _loaded(choice, target, tokenizer, own, rows_of_drafters)
    loaded.phases = clock.phases
    return Model(choice, tokenizer, Conversation(target), rows_of_drafters, own, loaded, policy)


def _choose_threads(target: TargetModel, sampler: Sampler, asked: int | None, cancelled: Callable[[], bool]) -> None:
    """So many CPU threads as were asked for, else those that make a one-row pass fastest: more of them can be slower.

    All that torch would take come first, then half as many, and so on while that pays.
    """
    torch.set_num_threads(asked or ALL_THREADS)
    if asked or target.device.type != "cpu":
        return
    best, chosen, count, spent = math.inf, ALL_THREADS, ALL_THREADS, 0.0
    while count >= 1 and spent < CALIBRATION:
        if cancelled():
            raise Cancelled
        torch.set_num_threads(count)
        times = [_timed(target, 1, sampler) for _ in range(6)]
        spent += sum(times)
        if min(times) > best * 0.97:  # a few passes tell no more
            break
        best, chosen, count = min(times), count, count // 2
    torch.set_num_threads(chosen)


def _timed(target: TargetModel, rows: int, sampler: Sampler) -> float:
    """Seconds of a round with so many rows, as answers run them."""
    began = time.perf_counter()
    rounds = Rounds(target, [0], sampler, ahead=False)
    rounds.check(Guess([0] * (rows - 1)))
    spent = time.perf_counter() - began
    target.rewind(0)
    return spent


def _calibrated(target: TargetModel, sampler: Sampler, cancelled: Callable[[], bool]) -> Policy:
    """A policy that knows what a pass of each width costs: the first pass builds kernels, the faster of two more counts."""
    policy = Policy()
    spent = 0.0
    for rows in WIDTHS:
        if cancelled():
            raise Cancelled
        times = [_timed(target, rows, sampler) for _ in range(3)]
        policy.calibrate(rows, min(times[1:]))
        spent += sum(times)
        if spent > CALIBRATION:
            break
    return policy


def _decoder(
    checkpoint: Checkpoint,
    form: Form,
    context: int,
    tell: Tell,
    cancelled: Callable[[], bool],
) -> Decoder:
    def layer(done: int, total: int) -> None:
        if cancelled():
            raise Cancelled
        tell("weights", done, total, "layers")

    try:
        return load_decoder(checkpoint, form, context + SLACK, layer)
    except torch.OutOfMemoryError as error:
        raise _too_big(checkpoint.path.name, form.device) from error


def _target(choice: ModelChoice, decoder: Decoder, known: ModelInfo, context: int) -> TargetModel:
    try:
        return TargetModel(decoder, known, context)
    except torch.OutOfMemoryError as error:
        raise _too_big(choice.model, decoder.device) from error


def _too_big(name: str, device: torch.device) -> ModelError:
    return ModelError(
        f"{name} does not fit into the memory of {device}.", "Try --dtype bf16, a smaller --context, or --device cpu."
    )


def _loaded(
    choice: ModelChoice, target: TargetModel, tokenizer: Tokenizer, own: Sampling, rows: list[DrafterRow]
) -> Loaded:
    decoder, filled = target.decoder, fill(Sampling(), own)
    return Loaded(
        model=choice.model,
        title=choice.model if target.info.name.startswith("sha256-") else target.info.name,  # a blob has no name
        family=decoder.spec.family,
        parameters=decoder.weights.parameters,
        bits=round(8 * decoder.weights.nbytes / decoder.weights.parameters, 2),
        nbytes=decoder.weights.nbytes + target.cache.nbytes,
        dtype=str(decoder.dtype).removeprefix("torch."),
        device=str(decoder.device),
        threads=torch.get_num_threads(),
        context=target.context,
        chat=tokenizer.template is not None,
        load_s=0.0,
        sampling=Sampling(temperature=filled.temperature, top_k=filled.top_k, top_p=filled.top_p, min_p=filled.min_p),
        drafters=rows,
    )
