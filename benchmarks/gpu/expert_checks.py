"""Mixtures of experts on the device: right for every kind of weights and width, and what they cost.

Letters: `S` rows, `E` experts, `d` width, `I` inner width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from kernel_checks import DTYPES, ROWS, SOME_ROWS, WITHIN
from mixtures import KINDS, TABLES, case, gated, layer, want
from rig import DEVICE, DTYPE, GPU, Figures, capture, error_of, fits, sustained
from torch import Tensor

from outrider.core.formats.quantized import Grouped, quantise
from outrider.core.model.blocks.mlp import Dense, Experts, Router, Ungated
from outrider.core.model.families.spec import Activation, ExpertsSpec
from outrider.core.model.kernels.activations import ACTIVATIONS
from outrider.core.model.kernels.forms import linear

COUNT, TOP = 6, 3
BATCHES = 12 if GPU else 2
# d, I, E, chosen
MODELS = {"qwen3-30b-a3b": (2048, 768, 128, 8), "gpt-oss-20b": (2880, 2880, 32, 4), "mixtral": (4096, 14336, 8, 2)}


def right(figures: Figures) -> None:
    """Every kind of codes, activation, bias and width against float64; a row alone gives what it gives among others."""
    size = (1024, 736) if GPU else (64, 32)
    for dtype in DTYPES:
        for kind in ("plain", *KINDS) if GPU and dtype == DTYPE else ("plain", "4 bits"):  # each is compiled anew
            rows = ROWS if kind in ("plain", "4 bits") else SOME_ROWS
            _right(f"{kind}", gated(kind, COUNT, size, dtype=dtype, device=str(DEVICE)), (dtype, rows), figures)
    width, inner = size
    for activation in ACTIVATIONS:
        experts = gated("plain", COUNT, size, activation, bias=True, dtype=DTYPE, device=str(DEVICE))
        _right(activation, experts, (DTYPE, SOME_ROWS), figures)
    sizes = (inner, width), (width, inner)
    squares = [
        Ungated(*(layer("plain", seed, some, False, DTYPE, str(DEVICE)) for some in sizes)) for seed in range(COUNT)
    ]
    _right("squares", squares, (DTYPE, SOME_ROWS), figures)


def _right(
    name: str, experts: list[Dense] | list[Ungated], how: tuple[torch.dtype, tuple[int, ...]], figures: Figures
) -> None:
    from outrider.core.model.blocks.mlp import matrices
    from outrider.core.model.kernels.sparse import mixture

    dtype, widths = how
    found = matrices(experts)
    mixed = None if found is None else mixture(*found, dtype)
    assert mixed is not None, f"{name} is not taken"
    x, weights, chosen = (part.to(DEVICE) for part in case(widths[-1], TOP, COUNT, experts[0].down.features[0]))
    x = x.to(dtype)
    found = {rows: mixed(x[:rows], weights[:rows], chosen[:rows]) for rows in widths}
    for rows, got in found.items():
        error = error_of(got, want(experts, x[:rows], weights[:rows], chosen[:rows]))
        key = f"error_{str(dtype).removeprefix('torch.')}"
        figures[key] = max(figures.get(key, 0.0), round(error, 6))
        assert error <= WITHIN[dtype], f"{name} in {dtype}, {rows} rows: off by {error:.4f} of the spread"
        assert torch.equal(got[0], found[1][0]), f"{name} in {dtype}: row 0 of {rows} is not row 0 of 1"


def cost(figures: Figures) -> None:
    """Microseconds of one captured mixture, router and all, by form and rows, and how fast the chosen experts are read.

    Several batches of rows in turn, so that no cache holds what they choose.
    """
    for model, (width, inner, count, top) in MODELS.items() if GPU else (("tiny", (64, 32, 4, 2)),):
        spec = ExpertsSpec(count, top, inner)
        router = Router(spec, linear(_random(count, width), None, DTYPE, DEVICE))
        for form, make in _forms().items():
            if not fits(8 * count * inner * width, figures, f"{model} {form}"):
                continue
            activation: Activation = "clamped" if form == "mxfp4" else "silu"
            whole = make(_random(2 * inner, width)), make(_random(width, inner))
            pairs = [[linear(_copy(part), None, DTYPE, DEVICE) for part in whole] for _ in range(count)]
            experts = [Dense(gate_up, down, activation) for gate_up, down in pairs]
            _cost(f"{model} {form}", Experts(router, experts), width, figures)


def _cost(name: str, experts: Experts, width: int, figures: Figures) -> None:
    recorder, first = capture(replay=False), experts.experts[0]
    assert isinstance(first, Dense)
    each = first.gate_up.nbytes + first.down.nbytes
    for rows in (1, 2, 4, 8, 16, 32, 64) if GPU else (1, 2):
        batches = [_random(rows, width).to(DTYPE) for _ in range(BATCHES)]
        spent = sustained(recorder.job(lambda batches=batches: _run(experts, batches))) / BATCHES
        figures.setdefault(f"us {name}", {})[rows] = round(spent * 1e3, 2)
        read = sum(experts.router(x)[1].unique().numel() for x in batches) * each / BATCHES
        figures.setdefault(f"gb_per_s {name}", {})[rows] = round(read / spent / 1e6)
    assert recorder.trouble is None, recorder.trouble


def _run(experts: Experts, batches: list[Tensor]) -> None:
    for x in batches:
        experts.routed(x, x, still=True)


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def _forms() -> dict[str, Callable[[Tensor], Tensor | Grouped]]:
    def mxfp4(weight: Tensor) -> Grouped:
        packed = quantise(weight, 4)
        return Grouped(packed.codes, packed.scale, None, TABLES["floats of 4 bits"].to(DEVICE), 4)

    return {
        "bf16": lambda weight: weight,
        "int4": lambda weight: quantise(weight, 4),
        "mxfp4": mxfp4,
        "fp8": lambda weight: Grouped(weight.to(torch.float8_e4m3fn), weight[:, ::32].abs().contiguous()),
    }


def _copy(weight: Tensor | Grouped) -> Tensor | Grouped:
    if isinstance(weight, Tensor):
        return weight.to(DTYPE, copy=True)
    return Grouped(weight.codes.clone(), weight.scale.clone(), weight.low, weight.table, weight.bits)
