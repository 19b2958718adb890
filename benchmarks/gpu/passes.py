"""What a pass costs on models of real shapes: by rows and context, captured and not, and plain decoding through the real loop.

`beyond_ms` is what a captured pass of one row takes beyond reading the weights at the speed of a copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import shapes
import torch
import toys
from rig import DEVICE, DTYPE, GPU, Figures, alone, capture, fits, held, launching, seconds, sustained

from outrider.core.formats.quantized import Grouped, quantise
from outrider.core.model.decoder import Decoder
from outrider.core.model.graph_runner import WIDTHS, CapturedPass, DraftInputs, GraphRunner
from outrider.core.model.kernels.forms import linear
from outrider.core.model.kernels.linear import Linear
from outrider.core.model.model import TargetModel
from outrider.core.sampling.device import SamplingTensors, kind_of
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import Settings
from outrider.core.session.chat_cache import ChatCache

CONTEXTS = (256, 4096, 16384) if GPU else (40,)
LADDER = tuple(width for width in WIDTHS if width <= 17) if GPU else (1, 4)
PREFILLS = (512, 1024, 2048, 4096) if GPU else (96,)
PROMPT, TOKENS = (200, 160) if GPU else (20, 12)


@dataclass(frozen=True, slots=True)
class Model:
    """A shape in a form, perhaps cut to some layers."""

    config: Mapping[str, Any]
    gib: int  # of weights, roughly
    quantize: int | None = None
    float8: bool = False
    layers: int | None = None

    @property
    def packed(self) -> bool:
        """Whether matrices stay in codes."""
        return self.quantize is not None or self.float8

    def decoder(self, context: int) -> Decoder:
        """Its random weights."""
        config = shapes.sized(self.config, self.layers)
        return shapes.decoder(config, shapes.plain(self.quantize), context, float8=self.float8)


MODELS = {
    "llama-8b bf16": Model(shapes.LLAMA_8B, 16),
    "llama-8b int4": Model(shapes.LLAMA_8B, 8, 4),
    "llama-8b fp8": Model(shapes.LLAMA_8B, 10, float8=True),
    "qwen3-8b bf16": Model(shapes.QWEN3_8B, 16),
    "qwen3-8b int4": Model(shapes.QWEN3_8B, 8, 4),
    "qwen3-30b-a3b bf16": Model(shapes.QWEN3_MOE, 60),
    "qwen3.6-27b bf16, 16 layers": Model(shapes.QWEN3_6, 20, layers=16),
}
# seconds that each may take
FIRST = {"llama-8b bf16": 45.0, "llama-8b int4": 40.0, "qwen3.6-27b bf16, 16 layers": 35.0}
THEN = {"qwen3-30b-a3b bf16": 40.0, "qwen3-8b bf16": 30.0, "qwen3-8b int4": 30.0, "llama-8b fp8": 30.0}


@cache
def bandwidth() -> float:
    """Bytes that a copy of a large buffer moves in a second, read and written."""
    size = (4 << 30) if GPU else (8 << 20)
    source = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    place = torch.empty_like(source)
    return 2 * size / sustained(lambda: place.copy_(source)) * 1e3


def of_model(name: str) -> Callable[[Figures], None]:
    """The check of one model."""

    def check(figures: Figures) -> None:
        model, context = MODELS[name], CONTEXTS[-1] + 512
        if not fits((model.gib + 10) << 30, figures, "skipped"):  # with keys, values, and what one matrix is made from
            return
        with torch.inference_mode():
            rate = bandwidth()
            with seconds(figures, "built_s"):
                made = model.decoder(context)
            read = shapes.read_bytes(made)
            figures |= {"read_gb": round(read / 1e9, 3), "copy_gb_per_s": round(rate / 1e9, 1)}
            target = shapes.target(made, context, capture(replay=not model.packed))
            _captured(target, figures, CONTEXTS[0])
            one = figures["ms"][f"at {CONTEXTS[0]}"][1]
            figures["share"] = round(read / rate / one * 1e3, 4)
            figures["beyond_ms"] = round(one - read / rate * 1e3, 3)
            _decoding(target, figures)
            for length in CONTEXTS[1:]:
                _captured(target, figures, length)
            _eager(shapes.target(made, CONTEXTS[0] + 512, None), figures)
            _prefill(target, figures)
            assert target.graph_runner is not None
            assert target.graph_runner.capture.trouble is None, target.graph_runner.capture.trouble

    return check


def stand(target: TargetModel, length: int) -> GraphRunner:
    """The runner at a length that nobody has filled: numbers do not matter."""
    runner = target.graph_runner
    assert runner is not None
    target.cache.advanced(length, length)
    runner.advanced(None)
    runner.seek(length, 5)
    return runner


def passing(target: TargetModel, width: int) -> CapturedPass:
    """A captured pass of so many rows, without choice and commit, where the target stands."""
    runner = target.graph_runner
    assert runner is not None
    end = runner.end(target.length, width)

    def build() -> CapturedPass:
        made = CapturedPass(DraftInputs.on(width, DEVICE, line=True))
        made.run = lambda: runner.body(made, end, ()) and None
        return made

    return runner.captured(("check", width, end), build)


def _captured(target: TargetModel, figures: Figures, length: int) -> None:
    runner = stand(target, length)
    before, used = runner.capture.count, held()
    found: dict[int, float] = {}
    with seconds(figures, f"capture_s at {length}"):
        made = {width: passing(target, width) for width in LADDER}
    fresh = runner.capture.count - before
    if fresh:
        figures["mib_per_graph"] = round((held() - used) / 2**20 / fresh, 1)
    for width, one in made.items():
        found[width] = round(sustained(one.run), 3)
    figures.setdefault("ms", {})[f"at {length}"] = found
    figures.setdefault("launch_ms", round(launching(made[1].run), 4))


def _eager(target: TargetModel, figures: Figures) -> None:
    target.cache.advanced(CONTEXTS[0], CONTEXTS[0])
    widths = (1, 4, 16) if GPU else (1,)
    found = {width: round(alone(lambda w=width: target.forward([5] * w)), 3) for width in widths}
    figures["ms"]["step by step"] = found


def _decoding(target: TargetModel, figures: Figures) -> None:
    """Plain answers; one before, so that everything is captured and compiled."""
    chat_cache, ids = ChatCache(target), [5 + index % 50 for index in range(PROMPT)]
    for tokens in (12, TOKENS):
        target.rewind(0)
        report = toys.answer(chat_cache, ids, limit=tokens)
    wall = report.timing.decode_s / max(1, report.passes) * 1e3
    figures["tokens_per_s"] = round(report.tokens_per_second, 1)
    figures["round_ms"] = round(wall, 3)
    text = [*ids[-1:], *report.token_ids]
    right = sum(after == shapes.following(token) for token, after in itertools.pairwise(text))
    figures["expected_tokens"] = f"{right} of {len(report.token_ids)}"
    device = round_alone(target)
    if device is not None:
        figures["round_alone_ms"] = round(device, 3)
        figures["host_ms"] = round(wall - device, 3)


def round_alone(target: TargetModel) -> float | None:
    """Milliseconds of the captured round of one row that the last answer used, with nothing between two."""
    runner = target.graph_runner
    assert runner is not None
    made = [some for key, some in runner._passes.items() if key[0] == "round" and some.inputs.rows.shape[1] == 1]
    if not made:
        return None
    stand(target, PROMPT)
    found = sustained(made[-1].run)
    runner.advanced(None)
    target.cache.advanced(0, 0)
    target.rewind(0)
    return found


def _prefill(target: TargetModel, figures: Figures) -> None:
    found: dict[int, float] = {}
    figures["prefill_tokens_per_s"] = found
    for rows in PREFILLS:
        target.rewind(0)
        ids = torch.randint(0, 200, (rows,), device=DEVICE)
        found[rows] = round(rows / alone(lambda ids=ids: target.forward(ids, last=True), 3) * 1e3)


# ---------------------------------------------------------------------------------------------------- parts of a pass


def sampling(figures: Figures) -> None:
    """Milliseconds of choosing tokens from rows of logits, captured, by kind of settings."""
    kinds = {
        "greedy": Settings(temperature=0),
        "whole": Settings(temperature=1.0, top_p=1.0),
        "nucleus": Settings(temperature=0.7, top_p=0.95),
        "top_k": Settings(temperature=0.7, top_k=40),
    }
    recorder = capture()
    for rows in (1, 8) if GPU else (1,):
        logits = torch.randn(rows, 151_936 if GPU else 2000, device=DEVICE).to(DTYPE) * 3
        positions = torch.arange(5, 5 + rows, device=DEVICE)
        for name, settings in kinds.items():
            tensors, kind = SamplingTensors.on(DEVICE), kind_of(settings)
            tensors.set(settings, Noise(1))
            assert kind is not None
            sampling = tensors.like(kind, sure=False)
            work = recorder.job(lambda s=sampling, x=logits, p=positions: s.choose(x, p) and None)
            figures.setdefault(f"ms of {rows} rows", {})[name] = round(sustained(work), 4)
    assert recorder.trouble is None, recorder.trouble


def products(figures: Figures) -> None:
    """Microseconds of one matrix [14336, 4096], captured, by form and rows; so many different ones that no cache holds them."""
    outputs, inputs, many = (14336, 4096, 12) if GPU else (64, 128, 2)
    recorder = capture(replay=False)
    for name, layers in _forms(outputs, inputs, many).items():
        for rows in (1, 2, 4, 8, 16, 32) if GPU else (1, 2):
            x = torch.randn(rows, inputs, device=DEVICE).to(DTYPE)
            work = recorder.job(lambda x=x, layers=layers: _multiplied(x, layers))
            spent = sustained(work) / many
            figures.setdefault(f"us {name}", {})[rows] = round(spent * 1e3, 2)
            if rows == 1:
                figures[f"gb_per_s {name}"] = round(layers[0].nbytes / spent / 1e6)
    assert recorder.trouble is None, recorder.trouble


def _multiplied(x: torch.Tensor, layers: Sequence[Linear]) -> None:
    for layer in layers:
        layer(x)


def _forms(outputs: int, inputs: int, many: int) -> dict[str, list[Linear]]:
    weight = torch.randn(outputs, inputs, device=DEVICE)
    each: dict[str, torch.Tensor | Grouped] = {
        "bf16": weight,
        "int8": quantise(weight, 8),
        "int4": quantise(weight, 4),
        "fp8": Grouped(weight.to(torch.float8_e4m3fn), torch.rand(outputs, inputs // 128, device=DEVICE)),
    }
    return {name: [linear(_copy(some), None, DTYPE, DEVICE) for _ in range(many)] for name, some in each.items()}


def _copy(weight: torch.Tensor | Grouped) -> torch.Tensor | Grouped:
    if isinstance(weight, torch.Tensor):
        return weight.clone()
    return Grouped(weight.codes.clone(), weight.scale.clone(), weight.low, weight.table, weight.bits)
