"""Every fused kernel on the device against float64, and whether a row's result hangs on how many rows share its pass.

Letters: `S` rows, `H` query heads, `K` key/value heads, `h` head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from rig import DEVICE, GPU, Figures, error_of
from torch import Tensor

from outrider.core.formats.quantized import Grouped, pack_nibbles, quantise
from outrider.core.model.blocks import mlp
from outrider.core.model.blocks.norm import Norm
from outrider.core.model.cache.layout import KVSlots, TreeMask
from outrider.core.model.families.spec import AttentionSpec
from outrider.core.model.kernels import ops
from outrider.core.model.kernels.interface import Fused, Heads, NormWeights

ROWS = (1, 2, 5, 16, 17, 33, 64) if GPU else (1, 3)
SOME_ROWS = (1, 3, 64) if GPU else (1, 3)  # each height of tiles is compiled anew, so not all of them everywhere
DTYPES = (torch.bfloat16, torch.float16, torch.float32) if GPU else (torch.float32,)
WITHIN = {torch.bfloat16: 0.06, torch.float16: 0.01, torch.float32: 2e-4}  # of the spread of what is right


def triton_there(figures: Figures) -> None:
    """Which fused steps the engine has found here, and why if it has found none."""
    there, how = ops.backend_status(DEVICE.type)
    figures["fused"] = how
    if GPU:
        from outrider.core.model.capture import probe

        trouble = probe(DEVICE)
        figures["graphs"] = trouble or "work"
        assert there, how
        assert trouble is None, trouble


def _backend() -> Fused:
    from outrider.core.model.kernels.fused import Triton

    return Triton()


def _some(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _near(got: Tensor, want: Tensor, dtype: torch.dtype, what: str, figures: Figures) -> None:
    error, key = error_of(got, want), f"error_{_name(dtype)}"
    figures[key] = max(figures.get(key, 0.0), round(error, 6))
    assert error <= WITHIN[dtype], f"{what} in {_name(dtype)}: off by {error:.4f} of the spread"


def _same(got: Tensor, want: Tensor, what: str) -> None:
    assert torch.equal(got, want), what


# ---------------------------------------------------------------------------------------------------- rows alone


def norms_and_gates(figures: Figures) -> None:
    """`rms_norm` of widths up to 8192, with and without weight, and `gated` of every activation."""
    fast = _backend()
    for dtype in DTYPES:
        for width in (64, 96, 576, 4096, 8192) if GPU else (64, 96):
            x, weight = _some(1, ROWS[-1], width).to(dtype), _some(2, width).to(dtype)
            for w in (weight, None):
                got = fast.rms_norm(x, w, 1e-6)
                want = F.rms_norm(x.double(), (width,), None if w is None else w.double(), 1e-6)
                _near(got, want, dtype, f"norm of {width}", figures)
                _alone(got, lambda s, x=x, w=w: fast.rms_norm(x[s : s + 1], w, 1e-6), f"norm of {width}")
        for activation in mlp.ACTIVATIONS:
            both = (_some(3, ROWS[-1], 2 * (14336 if GPU else 80)) * 3).to(dtype)
            got = fast.gated(both, activation)
            _near(got, mlp.ACTIVATIONS[activation](*both.double().chunk(2, -1)), dtype, activation, figures)
            _alone(got, lambda s, both=both, a=activation: fast.gated(both[s : s + 1], a), activation)


def _alone(together: Tensor, one: Callable[[int], Tensor], what: str) -> None:
    for s in sorted({0, together.shape[0] // 2, together.shape[0] - 1}):
        _same(one(s)[0], together[s], f"{what}: row {s} hangs on its neighbours")


# ---------------------------------------------------------------------------------------------------- attention


@dataclass
class Case:
    """One layer and one pass; `held` rows before it."""

    heads: int = 8
    kv_heads: int = 2
    head: int = 64
    held: int = 333
    window: int = 0
    ring: int = 0
    norm: bool = False
    rope: bool = False
    sinks: bool = False
    tree: bool = False
    room: int = 0  # rows of the buffer; 0: as few as will do

    def layer(self, dtype: torch.dtype) -> Heads:
        spec = AttentionSpec(self.heads, self.kv_heads, self.head, None, self.head**-0.5, window=self.window)
        q, k = (Norm(self.head, _some(s, self.head).to(dtype), 1e-6) if self.norm else None for s in (1, 2))
        return Heads(spec, q, k, _some(3, self.heads).to(dtype) if self.sinks else None)

    def seen(self, rows: int) -> tuple[Tensor, Tensor]:
        """Depths [S] below the first row and whom of the pass each row sees [S, S]: a line, or a tree of two branches."""
        at = torch.arange(rows, device=DEVICE)
        if not self.tree:
            return at, at[:, None] >= at
        return (at + 1) // 2, (at[:, None] >= at) & ((at[:, None] % 2 == at % 2) | (at == 0))


def _pass(case: Case, rows: int, dtype: torch.dtype, mixed: Tensor, kv: Tensor) -> Tensor:
    """The kernel over the first `rows` of `mixed`."""
    at = case.held + torch.arange(rows, device=DEVICE)
    depth, seen = case.seen(rows)
    bits = (seen.to(torch.int64) << torch.arange(rows, device=DEVICE)).sum(1)
    cos, sin = _turns(case, rows, dtype)
    positions = case.held + depth
    slots = at % case.ring if case.ring else at
    place = KVSlots(slots, case.ring, cos, sin, TreeMask(at[:1].clone(), positions, positions, bits))
    return _backend().attend(mixed[:rows].clone(), kv, case.layer(dtype), place)


def _turns(case: Case, rows: int, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    if not case.rope:
        return None, None
    angles = _some(6, 64, 1, case.head // 2)[:rows]
    sin = torch.cat((-angles.sin(), angles.sin()), -1)
    return torch.cat((angles.cos(), angles.cos()), -1).to(dtype), sin.to(dtype)


def _right(case: Case, rows: int, dtype: torch.dtype, mixed: Tensor, history: Tensor) -> Tensor:
    """The same by the definition, in float64: [S, H h]. `history` are all rows before the pass, by position."""
    heads, h, n = case.layer(dtype), case.head, case.heads + case.kv_heads
    x = mixed[:rows].double()
    if heads.q_norm is not None and heads.k_norm is not None:
        q, k = x[:, : case.heads], x[:, case.heads : n]
        x = torch.cat((_normed(q, heads.q_norm), _normed(k, heads.k_norm), x[:, n:]), 1)
    cos, sin = _turns(case, rows, dtype)
    if cos is not None and sin is not None:
        turned = x[:, :n] * cos.double() + x[:, :n].roll(h // 2, -1) * sin.double()
        x = torch.cat((turned, x[:, n:]), 1)
    kv = torch.cat((history.double(), x[:, case.heads :]))
    keys, values = (part.repeat_interleave(case.heads // case.kv_heads, 1) for part in kv.chunk(2, 1))
    scores = torch.einsum("shd,chd->hsc", x[:, : case.heads], keys) * h**-0.5
    depth, seen = case.seen(rows)
    sees = torch.cat((torch.ones(rows, case.held, dtype=torch.bool, device=DEVICE), seen), 1)
    if case.window:
        stands = torch.cat((torch.arange(case.held, device=DEVICE), case.held + depth))
        sees &= stands > (case.held + depth)[:, None] - case.window
    scores = scores.masked_fill(~sees, -torch.inf)
    if heads.sinks is not None:
        scores = torch.cat((scores, heads.sinks.double()[:, None, None].expand(-1, rows, 1)), -1)
    return torch.einsum("hsc,chd->shd", scores.softmax(-1)[..., : keys.shape[0]], values).flatten(1)


def _normed(x: Tensor, norm: NormWeights) -> Tensor:
    assert norm.weight is not None
    return F.rms_norm(x, (x.shape[-1],), norm.weight.double(), norm.eps)


CASES = {
    "plain": Case(),
    "8b": Case(32, 8, 128, held=1500, rope=True),
    "normed": Case(32, 8, 128, norm=True, rope=True),
    "256": Case(24, 4, 256, norm=True, rope=True),
    "no groups": Case(4, 4, 64),
    "one key head": Case(16, 1, 128),
    "odd head": Case(6, 2, 80, rope=True),
    "sinks": Case(sinks=True, window=100),
    "window": Case(window=50),
    "ring": Case(window=50, ring=128, held=777, rope=True),
    "tree": Case(tree=True, rope=True),
    "tree in a ring": Case(tree=True, window=40, ring=128, held=300),
    "much room": Case(32, 8, 128, held=1500, rope=True, room=16384),
}


TINY = ("normed", "ring", "tree", "sinks")
OTHERS = ("8b", "ring", "tree")  # in other dtypes than bf16


def attention(figures: Figures) -> None:
    """`attend` with every switch and width."""
    for dtype in DTYPES:
        for name, case in CASES.items():
            if not GPU:
                if name not in TINY:
                    continue
                case = replace(
                    case, heads=4, kv_heads=2, head=16, held=70, window=case.window // 2, ring=case.ring // 2
                )
            elif dtype != torch.bfloat16 and name not in OTHERS:
                continue
            _attention(name, case, dtype, figures)


def _attention(name: str, case: Case, dtype: torch.dtype, figures: Figures) -> None:
    mixed = _some(4, ROWS[-1], case.heads + 2 * case.kv_heads, case.head).to(dtype)
    history = _some(5, case.held, 2 * case.kv_heads, case.head).to(dtype)
    results = {}
    for rows in ROWS if name == "8b" else SOME_ROWS:
        if not case.ring or rows <= case.ring - case.window:
            results[rows] = _pass(case, rows, dtype, mixed, _buffer(case, history, dtype))
            want = _right(case, rows, dtype, mixed, history)
            _near(results[rows], want, dtype, f"{name}, {rows} rows", figures)
    for rows in results:
        if not case.tree and rows * (case.heads // case.kv_heads) <= 16:  # they share the height of the tile
            _same(results[rows][0], results[1][0], f"{name} in {_name(dtype)}: row 0 of {rows} is not row 0 of 1")


def _buffer(case: Case, history: Tensor, dtype: torch.dtype) -> Tensor:
    size = case.ring or case.room or (case.held + ROWS[-1] + 63) // 64 * 64
    kv = torch.full((size, 2 * case.kv_heads, case.head), 7.0, dtype=dtype, device=DEVICE)
    rows = torch.arange(max(0, case.held - case.ring) if case.ring else 0, case.held, device=DEVICE)
    kv[rows % case.ring if case.ring else rows] = history[rows]
    return kv


# ---------------------------------------------------------------------------------------------------- recurrences


def recurrences(figures: Figures) -> None:
    """`walk` and `settle` of the delta rule and of Mamba-2; a settled memory is, bit for bit, what a longer walk finds."""
    sizes = ((16, 48, 128, 128), (8, 64, 128, 64), (2, 4, 20, 10)) if GPU else ((2, 4, 20, 10),)
    for nk, nv, dk, dv in sizes:
        for rows in ROWS:
            k = F.normalize(_some(1, rows, nk, dk), dim=-1).float()
            q, v = _some(2, rows, nk, dk).float(), _some(3, rows, nv, dv).float()
            decay, beta = _some(5, 2, rows, nv).sigmoid().float()
            for corrects in (True, False):
                _walked(_some(4, nv, dk, dv).float(), q, (k, v, decay, beta if corrects else None), figures)


def _walked(memory: Tensor, q: Tensor, each: tuple[Tensor, Tensor, Tensor, Tensor | None], figures: Figures) -> None:
    from outrider.core.model.kernels.walk import Steps, settle, walk

    rows, before, steps = len(q), memory.clone(), Steps(*each)
    reads, end = _recurrence(memory, q, each)
    found = walk(memory, q, steps)
    _near(found, reads, torch.float32, f"walk of {rows}", figures)
    _same(memory, before, "a walk has written")
    half = rows // 2
    settle(memory, steps, torch.tensor([half], device=DEVICE))
    rest = Steps(*(None if part is None else part[half:] for part in each))  # type: ignore[arg-type]
    _same(walk(memory, q[half:], rest), found[half:], f"{rows} rows: settled is not walked")
    settle(memory, rest, torch.tensor([rows - half], device=DEVICE))
    _near(memory, end, torch.float32, f"settle of {rows}", figures)


def _recurrence(memory: Tensor, q: Tensor, each: tuple[Tensor, Tensor, Tensor, Tensor | None]) -> tuple[Tensor, Tensor]:
    """What each token reads, and the memory at the end, by the definition."""
    keys, values, decays, betas = each
    memory, share = memory.double(), values.shape[1] // q.shape[1]
    keys, queries = (part.double().repeat_interleave(share, 1) for part in (keys, q))
    reads = []
    for t in range(len(q)):
        memory = memory * decays[t].double()[:, None, None]
        write = values[t].double()
        if betas is not None:
            write = (write - torch.einsum("hkv,hk->hv", memory, keys[t])) * betas[t].double()[:, None]
        memory = memory + keys[t][:, :, None] * write[:, None]
        reads.append(torch.einsum("hkv,hk->hv", memory, queries[t]))
    return torch.stack(reads), memory


# ---------------------------------------------------------------------------------------------------- quantised


def quantised(dtype: torch.dtype) -> Callable[[Figures], None]:
    """`grouped_linear` of every kind of codes and width against the expanded matrix, with bias and residual."""

    def check(figures: Figures) -> None:
        for outputs, inputs in ((4096, 4096), (1000, 14336), (151, 576)) if GPU else ((70, 128),):
            if dtype == torch.bfloat16 or inputs <= 4096:
                for kind, grouped in _kinds(outputs, inputs).items():
                    if dtype != torch.float16 or kind == "int4":
                        rows = ROWS if inputs == 4096 else SOME_ROWS
                        _quantised(f"{kind} {outputs}x{inputs}", grouped, (dtype, rows), figures)

    return check


def _quantised(name: str, grouped: Grouped, how: tuple[torch.dtype, tuple[int, ...]], figures: Figures) -> None:
    from outrider.core.model.kernels.matmul import grouped_linear

    dtype, widths = how
    outputs, inputs = grouped.shape
    dense = grouped.expand(torch.float64)
    x, residual = _some(1, ROWS[-1], inputs).to(dtype), _some(3, ROWS[-1], outputs).to(dtype)
    bias = _some(2, outputs).to(dtype)
    found = {rows: grouped_linear(x[:rows], grouped) for rows in widths}
    for rows, got in found.items():
        _near(got, x[:rows].double() @ dense.T, dtype, f"{name}, {rows} rows", figures)
        _same(got[0], found[1][0], f"{name} in {_name(dtype)}: row 0 of {rows} is not row 0 of 1")
    got = grouped_linear(x, grouped, bias, residual)
    _near(got, x.double() @ dense.T + bias.double() + residual.double(), dtype, f"{name} with more", figures)


def _kinds(outputs: int, inputs: int) -> dict[str, Grouped]:
    weight = _some(7, outputs, inputs).float()
    codes = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8, device=DEVICE)
    each = 128 if inputs % 128 == 0 else inputs
    scale = torch.rand(outputs, inputs // 32, device=DEVICE).half()
    return {
        "int4": quantise(weight, 4),
        "int8": quantise(weight, 8),
        "table4": Grouped(pack_nibbles(codes, 32), scale, table=torch.randn(16, device=DEVICE), bits=4),
        "q8": Grouped((weight * 30).clamp(-127, 127).to(torch.int8), scale),
        "fp8": Grouped(weight.to(torch.float8_e4m3fn), torch.rand(outputs, inputs // each, device=DEVICE) + 0.1),
    }
