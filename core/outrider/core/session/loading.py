"""From a `ModelChoice` to a model in memory: decoder, cache, tokenizer, defaults, and how every drafter fits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import torch

from outrider.core.base.errors import Cancelled, ModelError
from outrider.core.base.model_info import ModelInfo
from outrider.core.base.protocol import DrafterChoice, DrafterRow, Loaded, MemoryPlan, ModelChoice, Sampling
from outrider.core.base.trouble import out_of_memory
from outrider.core.formats.checkpoint import Checkpoint, info, open_checkpoint
from outrider.core.formats.recommended import recommended
from outrider.core.library import discovery, memory, plan
from outrider.core.model.decoder import Decoder
from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.model.load import choose_device, choose_dtype, load_decoder
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel
from outrider.core.policy.history import History
from outrider.core.policy.policy import Policy
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import Sampler, fill
from outrider.core.text.tokenizer import Tokenizer

from .calibration import Calibrator
from .chat_cache import ChatCache

BITS = {"int8": 8, "int4": 4}  # of --quantize

Tell = Callable[[str, float, float, str], None]  # phase, done, total, unit


@dataclass(slots=True)
class Model:
    """A target in memory with everything that belongs to it."""

    choice: ModelChoice
    tokenizer: Tokenizer
    cache: ChatCache
    rows: list[DrafterRow]
    sampling: Sampling  # the model's own defaults
    loaded: Loaded
    policy: Policy
    history: History  # what the policy learns, kept between runs
    remarks: list[str] = field(default_factory=list)  # what the user should know of it, to be said once
    slow: bool = False  # the user knows that its passes are not captured
    refused: list[DrafterChoice] = field(default_factory=list)  # choices that could not be used, and were reported


class _Clock:
    """Seconds of each phase."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.phases[phase] = now - self._last
        self._last = now


def open_model(choice: ModelChoice, path: Path, report: Tell, cancelled: Callable[[], bool]) -> Model:
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
        report("tokenizer", 0, 0, "")
        tokenizer = Tokenizer(checkpoint.text())
        clock.lap("tokenizer")
        form = WeightFormat(dtype, device, BITS.get(choice.quantize), plan.keep(subject, settings))
        decoder = _decoder(checkpoint, form, context, report, cancelled)
        decoder.hide(tokenizer.unnamed(decoder.spec.vocab))
        target = _target(choice, decoder, info(checkpoint), context)
        planned = plan.plan(subject, settings)
        clock.lap("weights")
        generation = checkpoint.generation
    finally:
        checkpoint.close()
    report("warm-up", 0, 0, "")
    own, refused = recommended(generation)
    sampler = Sampler(fill(Sampling(), own), Noise(0))
    history = History(choice, path, device)
    policy = Calibrator(target, sampler, cancelled).policy(history.costs(), choice.threads)
    history.recall(policy)
    clock.lap("warm-up")
    rows_of_drafters = discovery.near(target.info)
    loaded = _loaded(choice, target, tokenizer, own, rows_of_drafters)
    loaded.phases = clock.phases
    loaded.memory = _taken(planned, target)
    remarks = [*tokenizer.remarks, *refused]
    return Model(choice, tokenizer, ChatCache(target), rows_of_drafters, own, loaded, policy, history, remarks)


def _decoder(
    checkpoint: Checkpoint,
    form: WeightFormat,
    context: int,
    report: Tell,
    cancelled: Callable[[], bool],
) -> Decoder:
    def layer(done: int, total: int) -> None:
        if cancelled():
            raise Cancelled
        report("weights", done, total, "layers")

    try:
        return load_decoder(checkpoint, form, context + MAX_DRAFT_ROWS, layer)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise _too_big(checkpoint.path.name, form.device) from error


def _target(choice: ModelChoice, decoder: Decoder, known: ModelInfo, context: int) -> TargetModel:
    try:
        return TargetModel(decoder, known, context, exact=choice.exact)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise _too_big(choice.model, decoder.device) from error


def _taken(planned: MemoryPlan, target: TargetModel) -> MemoryPlan:
    """What the model took of what was planned, and what is left."""
    weights, states = target.decoder.weights.nbytes, target.cache.nbytes
    total, free = weights + states + planned.overhead, memory.free(planned.device)
    return msgspec.structs.replace(
        planned, weights=weights, states=states, total=total, free=free, verdict="", instead=""
    )


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
        sampling=filled.sampling(own),
        drafters=rows,
    )
