"""The fused steps in C: each switch against float64, the same bits whatever shares a pass, machines that cannot build them."""

from __future__ import annotations

import os
import select
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.core.measure import doctor
from outrider.core.model.blocks.norm import Norm
from outrider.core.model.cache.layout import KVSlots, PassLayout, TreeMask, tree_of
from outrider.core.model.families.spec import Activation, AttentionSpec, RopeSpec
from outrider.core.model.kernels import compiled, native, ops
from outrider.core.model.kernels.activations import ACTIVATIONS
from outrider.core.model.kernels.interface import Heads, NormWeights

CPU = torch.device("cpu")
ROPE = RopeSpec(10_000.0, 0)
TREE = (-1, 0, 0, 1, -1, 4, 4, 6, 2)
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(scope="module", params=["", "-U__AMX_BF16__"], ids=["as it is", "no matrix units"])
def fast(request: pytest.FixtureRequest) -> native.Native:
    """The library, also for a processor that can do less."""
    try:
        command = compiled.compiler()[0]
    except compiled.UnbuiltError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", " ".join((*command, request.param)))
        with torch.autocast("cpu", torch.bfloat16):  # as a training asks for it
            found = native.find()
    assert isinstance(found, native.Native), found
    return found


@dataclass
class Case:
    """A pass over one layer with random contents."""

    heads: int = 4
    kv_heads: int = 2
    head: int = 64
    before: int = 40  # committed rows
    rows: int = 3
    dtype: torch.dtype = torch.float32
    window: int = 0
    ring: int = 0
    parents: tuple[int, ...] | None = None
    rope: bool = True
    norms: str = ""  # "plain", "weights"
    sinks: bool = False
    reads: bool = False  # another layer's keys and values
    gate: bool = False
    seed: int = 0
    spec: AttentionSpec = field(init=False)

    def __post_init__(self) -> None:
        g = torch.Generator().manual_seed(self.seed)
        some = lambda *shape: torch.randn(*shape, generator=g).to(self.dtype)  # noqa: E731
        rope, source = ROPE if self.rope else None, 0 if self.reads else None
        self.spec = AttentionSpec(
            *(self.heads, self.kv_heads, self.head, rope, self.head**-0.5), window=self.window, source=source
        )
        self.kv = some(self.ring or 640, 2 * self.kv_heads, self.head)
        total = self.heads + (0 if self.reads else 2 * self.kv_heads) + (self.heads if self.gate else 0)
        self.mixed = some(64, total, self.head)[: self.rows]
        angles = 3 * some(1024, self.head)
        self.angles = angles.cos(), angles.sin()
        norms = [Norm(self.head, some(self.head) if self.norms == "weights" else None, 1e-6) for _ in range(2)]
        q_norm, k_norm = norms if self.norms else (None, None)
        self.layer = Heads(self.spec, q_norm, None if self.reads else k_norm, some(self.heads) if self.sinks else None)
        tree = None if self.parents is None else tree_of(self.parents, self.before, CPU)
        self.where = PassLayout(self.before, self.rows, {}, self.dtype, CPU, tree)

    def place(self) -> KVSlots:
        sight = self.where.sight
        assert sight is not None
        cos, sin = (part[self.where.positions, None] for part in self.angles) if self.rope else (None, None)
        return KVSlots(self.where.slots(self.ring) if self.ring else self.where.index, self.ring, cos, sin, sight)

    def run(self, fast: native.Native) -> tuple[Tensor, Tensor]:
        """The result and the rows held afterwards."""
        assert fast.attends(self.layer, self.dtype)
        kv = self.kv.clone()
        mixed = self.mixed.clone()
        y = fast.attend(mixed, kv, self.layer, self.place())
        if self.gate:
            assert torch.equal(mixed[:, -self.heads :], self.mixed[:, -self.heads :])
        return y, kv


def prepared(x: Tensor, norm: NormWeights | None, place: KVSlots) -> Tensor:
    if norm is not None:
        weight = None if norm.weight is None else norm.weight.double()
        x = F.rms_norm(x, (x.shape[-1],), weight, norm.eps)
    if place.cos is None or place.sin is None:
        return x
    return x * place.cos.double() + x.roll(x.shape[-1] // 2, -1) * place.sin.double()


def exact(case: Case) -> tuple[Tensor, Tensor]:
    """What `Case.run` gives, in float64 and by definition."""
    spec, place = case.spec, case.place()
    kv, mixed = case.kv.double(), case.mixed.double()
    q = prepared(mixed[:, : spec.heads], case.layer.q_norm, place)
    if not case.reads:
        k = prepared(mixed[:, spec.heads : spec.heads + spec.kv_heads], case.layer.k_norm, place)
        v = mixed[:, spec.heads + spec.kv_heads : spec.heads + 2 * spec.kv_heads]
        kv[place.slots] = torch.cat((k, v), 1)
    sight, out = place.sight, []
    for row in range(case.rows):
        here = int(sight.positions[row])
        seen = [(r, r) for r in range(int(sight.base))]
        bits, loose = int(sight.bits[row]), sight.loose.tolist()
        seen += [(int(sight.base) + t, p) for t, p in enumerate(loose) if bits >> t & 1]
        rows = [r % case.ring if case.ring else r for r, p in seen if not spec.window or p > here - spec.window]
        keys, values = (part.repeat_interleave(spec.heads // spec.kv_heads, 1) for part in kv[rows].chunk(2, 1))
        scores = torch.einsum("hd,chd->hc", q[row], keys) * spec.scale
        if case.layer.sinks is not None:
            scores = torch.cat((scores, case.layer.sinks.double()[:, None]), 1)
        out.append(torch.einsum("hc,chd->hd", scores.softmax(-1)[:, : len(rows)], values).flatten())
    return torch.stack(out), kv


CASES = {
    "as-it-is": Case(),
    "first-token": Case(before=0, rows=1),
    "one-row": Case(rows=1),
    "64-rows": Case(rows=64, before=0),
    "head-16": Case(head=16),
    "head-80": Case(head=80, rows=5),
    "head-128": Case(head=128, norms="weights"),
    "head-256": Case(heads=2, head=256, before=100, rows=45),
    "one-head-each": Case(heads=5, kv_heads=5, rows=9),
    "groups-of-3": Case(heads=9, kv_heads=3, rows=30),
    "groups-of-5": Case(heads=5, kv_heads=1),
    "groups-of-8": Case(heads=8, kv_heads=1, rows=17),
    "groups-of-40": Case(heads=40, kv_heads=1),
    "over-a-tile": Case(before=250, rows=20),
    "at-a-tile": Case(before=256, rows=2),
    "ends-at-a-tile": Case(before=508, rows=4),
    "three-tiles": Case(before=570, rows=33),
    "window": Case(before=300, window=20, rows=9),
    "narrow-window": Case(before=290, window=3, rows=16),
    "narrow-window-of-many": Case(heads=40, kv_heads=1, before=290, window=3, rows=64),
    "tile-that-some-do-not-see": Case(before=240, window=30, rows=64),
    "window-of-tiles": Case(before=570, window=300, rows=16),
    "window-to-come": Case(before=4, window=20, rows=12),
    "ring": Case(before=333, window=50, ring=128, rows=8),
    "ring-at-its-end": Case(before=250, window=64, ring=128, rows=20),
    "tree": Case(rows=10, parents=TREE),
    "tree-over-a-tile": Case(before=252, rows=10, parents=TREE),
    "tree-in-a-window": Case(before=100, rows=10, parents=TREE, window=3),
    "tree-in-a-ring": Case(before=252, rows=10, parents=TREE, window=50, ring=128),
    "norms": Case(norms="plain"),
    "norms-with-weights": Case(norms="weights"),
    "sinks": Case(sinks=True, before=300),
    "no-rope": Case(rope=False),
    "reads-another": Case(reads=True, norms="weights"),
    "gate": Case(gate=True),
    "reads-with-gate": Case(gate=True, reads=True, sinks=True),
}
NEIGHBOURS = ["one-head-each", "groups-of-3", "groups-of-8", "over-a-tile", "three-tiles", "64-rows"]
NEIGHBOURS += ["window-of-tiles", "ring-at-its-end"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", list(CASES))
def test_attention(fast: native.Native, name: str, dtype: torch.dtype) -> None:
    case = replace(CASES[name], dtype=dtype)
    tolerance = 2e-5 if dtype == torch.float32 else 0.04
    for found, known in zip(case.run(fast), exact(case), strict=True):
        torch.testing.assert_close(found.double(), known, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_loose_rows_of_earlier_passes(fast: native.Native, dtype: torch.dtype) -> None:
    """As a drafter that grows a tree level by level sees them; two of them share a position."""
    case = Case(dtype=dtype, before=254, rows=4)
    loose = torch.tensor([250, 250, 251, 252, 250, 251, 252, 253])
    sight = TreeMask(torch.tensor([250]), loose[-4:], loose, torch.tensor([0b10011, 0b101111, 0b1110001, 0b11110011]))
    place = case.place()._replace(sight=sight)
    case.place = lambda: place
    found, known = case.run(fast)[0], exact(case)[0]
    tolerance = 2e-5 if dtype == torch.float32 else 0.04
    torch.testing.assert_close(found.double(), known, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NEIGHBOURS)
def test_a_row_does_not_depend_on_its_neighbours(fast: native.Native, name: str, dtype: torch.dtype) -> None:
    """Bit for bit: alone, with some before it, with all."""
    whole = replace(CASES[name], dtype=dtype, norms="weights", sinks=True)
    found, held = whole.run(fast)
    start = 0
    for rows in (1, 2, 3, 7, 11, 19):
        rows = min(rows, whole.rows - start)
        part = replace(whole, rows=rows, before=whole.before + start)
        part.kv, part.mixed = held.clone(), whole.mixed[start : start + rows]
        part.kv[part.place().slots] = 7.0
        assert torch.equal(part.run(fast)[0], found[start : start + rows])
        start += rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("before", [40, 250, 252, 255])
@pytest.mark.parametrize("window", [0, 30])
def test_a_node_is_what_its_path_alone_gives(fast: native.Native, before: int, window: int, dtype: torch.dtype) -> None:
    """Bit for bit, also where the rows of the tree and those of the path lie in different tiles."""
    tree = Case(rows=10, parents=TREE, before=before, dtype=dtype, window=window)
    found = tree.run(fast)[0]
    for node in (3, 5, 7, 8):
        path = [node]
        while path[0] >= 0:
            path.insert(0, TREE[path[0]])
        rows = [1 + n for n in path]
        line = replace(tree, rows=len(rows), parents=None)
        line.mixed = tree.mixed[rows]
        assert torch.equal(line.run(fast)[0], found[rows])


def test_threads_change_nothing(fast: native.Native) -> None:
    case = Case(heads=8, kv_heads=2, head=128, before=600, rows=20, dtype=torch.bfloat16)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = case.run(fast)[0]
        torch.set_num_threads(3)
        assert torch.equal(case.run(fast)[0], alone)
        assert len(compiled.runtimes()) <= 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_not_a_number_stays_visible(fast: native.Native, dtype: torch.dtype) -> None:
    nan = float("nan")
    for where, heads in ((0, slice(0, 2)), (5, slice(2, 4)), (7, slice(2, 4))):  # a query, a key, a value
        case = Case(dtype=dtype, before=300, rows=1, norms="weights")
        case.mixed[0, where, 3] = nan
        found = case.run(fast)[0].view(4, -1)
        assert found[heads].isnan().any(-1).sum() == (1 if where == 0 else 2)
    case = Case(dtype=dtype, before=300, rows=1)
    case.mixed[:] = nan
    assert case.run(fast)[0].isnan().all()
    x = torch.ones(2, 80, dtype=dtype)
    x[1, 7] = nan
    assert fast.rms_norm(x, None, 1e-6).isnan().any(-1).tolist() == [False, True]
    for activation in ACTIVATIONS:
        assert fast.gated(x, activation).isnan().sum() == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [16, 40, 93, 576])
@pytest.mark.parametrize("weight", [False, True])
def test_norm(fast: native.Native, width: int, weight: bool, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(width)
    x, w = (torch.randn(*shape, generator=g).to(dtype) for shape in ((5, 3, width), (width,)))
    w = w if weight else None
    found, known = fast.rms_norm(x, w, 1e-5), F.rms_norm(x, (width,), w, 1e-5)
    assert found.shape == x.shape and found.dtype == dtype
    if dtype == torch.bfloat16:  # but for a sum that lies between two
        assert (found != known).sum() <= 2
    torch.testing.assert_close(found, known, atol=1e-6, rtol=1e-6 if dtype == torch.float32 else 0.01)
    assert torch.equal(fast.rms_norm(x[2:3, 1], w, 1e-5), found[2:3, 1])
    assert torch.equal(fast.rms_norm(x.transpose(0, 1), w, 1e-5), found.transpose(0, 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [16, 40, 93, 576])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_gate(fast: native.Native, activation: Activation, width: int, dtype: torch.dtype) -> None:
    both = torch.randn(9, 2 * width, generator=torch.Generator().manual_seed(width)) * 4
    both[0, :8] = torch.tensor([0.0, -0.0, 30.0, -30.0, 100.0, -100.0, 1e-30, 8.0])
    both = both.to(dtype)
    found, known = fast.gated(both, activation), ACTIVATIONS[activation](*both.double().chunk(2, -1))
    tolerance = 2e-6 if dtype == torch.float32 else 0.012
    torch.testing.assert_close(found.double(), known, atol=tolerance, rtol=tolerance)
    if dtype == torch.bfloat16 and activation != "gelu_tanh":
        assert (found != ACTIVATIONS[activation](*both.chunk(2, -1))).sum() <= 1 + found.numel() // 500
    assert torch.equal(fast.gated(both[3:4], activation), found[3:4])


def test_what_is_left_to_torch(fast: native.Native) -> None:
    x = torch.randn(2, 32, generator=torch.Generator().manual_seed(0)).half()
    assert torch.equal(fast.rms_norm(x, None, 1e-6), F.rms_norm(x, (32,), None, 1e-6))
    assert torch.equal(fast.gated(x, "silu"), ACTIVATIONS["silu"](*x.chunk(2, -1)))
    layer = Case().layer
    assert fast.attends(layer, torch.bfloat16) and not fast.attends(layer, torch.float16)
    for spec in (replace(layer.spec, head_dim=72), replace(layer.spec, head_dim=512), replace(layer.spec, heads=130)):
        assert not fast.attends(replace(layer, spec=spec), torch.float32)
    assert not fast.attends(replace(layer, q_norm=Norm(64, None, 1e-6, centred=True)), torch.float32)


# --------------------------------------------------------------------------------------------- building


TOY = "int answer(void) { return 42; }\n"


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of compiled libraries."""
    folder = tmp_path / "builds"
    monkeypatch.setenv("OUTRIDER_BUILDS", str(folder))
    return folder


@pytest.fixture
def toy(fast: native.Native, tmp_path: Path) -> Path:
    path = tmp_path / "toy.c"
    path.write_text(TOY)
    return path


def a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, does: str) -> None:
    """A script in the compiler's place that knows its version and then does something else."""
    script = tmp_path / "strange"
    script.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo strange 1.0; exit; fi\n{does}\n')
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))


def test_no_compiler(builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    assert native.find() == "CC names /nowhere/cc, which is not there; install gcc or clang"
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    assert native.find() == "no C compiler found; install gcc or clang"
    monkeypatch.setattr(ops, "_found", {})
    assert ops.fused(torch.zeros(1)) is None
    (line,) = doctor._fused()
    assert line.level == "note" and line.text == "torch's own steps: no C compiler found; install gcc or clang"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 3, 15, 16, 17, 33, 1000, 49_152])
def test_the_best_of_a_row(fast: native.Native, n: int, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(n)
    for rows in (1, 3, 17):
        x = (torch.randn(rows, n, generator=g) * 3).to(dtype)  # bf16 has many alike
        largest, ids = fast.best(x)
        assert torch.equal(largest, x.float().amax(-1))
        assert ids.tolist() == [int((row == row.amax()).nonzero()[0]) for row in x]
        want = x.double().softmax(-1).amax(-1).float()
        torch.testing.assert_close(fast.certainty(x), want, rtol=1e-5, atol=0)
        assert torch.equal(fast.certainty(x[-1:]), fast.certainty(x)[-1:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [0, 20, 39])
def test_a_row_that_is_no_numbers_has_no_best(fast: native.Native, place: int, dtype: torch.dtype) -> None:
    x = torch.arange(3.0 * 40).view(3, 40).to(dtype)
    x[1, place] = torch.nan
    x[2, place] = torch.inf
    assert fast.best(x)[0].isfinite().tolist() == fast.certainty(x).isfinite().tolist() == [True, False, False]
    x[:2] = -torch.inf
    x[1, place] = 1.0  # words that are never drafted
    assert fast.best(x)[0].tolist() == [-torch.inf, 1.0, torch.inf] and fast.best(x)[1][1] == place
    assert fast.certainty(x)[1] == 1.0 and not fast.certainty(x)[0].isfinite()


def test_a_best_of_numbers_that_c_does_not_read(fast: native.Native) -> None:
    x = torch.randn(2, 40).half()
    assert torch.equal(fast.best(x)[1], x.argmax(-1))
    torch.testing.assert_close(fast.certainty(x), x.float().softmax(-1).amax(-1))


def test_a_compiler_that_fails(builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_compiler(monkeypatch, tmp_path, "echo out of luck >&2; exit 3")
    assert native.find() == "strange failed: out of luck"
    a_compiler(monkeypatch, tmp_path, "exit 3")
    assert native.find() == "strange failed: exit status 3"
    a_compiler(monkeypatch, tmp_path, "exit 0")  # says that all is well, and makes nothing
    assert "cannot be used" in str(native.find())
    assert list(builds.iterdir()) == []


def test_a_compiler_that_hangs(builds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is left, its children neither: nobody holds the pipe that they had."""
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    a_compiler(monkeypatch, tmp_path, f"exec >{tmp_path / 'pipe'}; echo here; sleep 60 & wait")
    compiled.compiler()
    monkeypatch.setattr(compiled, "TIMEOUT", 0.3)
    assert native.find() == "strange was still busy after 0 seconds"
    assert os.read(pipe, 100) == b"here\n"
    assert select.select([pipe], [], [], 10)[0] == [pipe] and os.read(pipe, 100) == b""
    os.close(pipe)


def test_a_folder_that_cannot_be_written(fast: native.Native, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("OUTRIDER_BUILDS", str(tmp_path / "file" / "builds"))
    assert "cannot be used" in str(native.find())


def test_wrong_numbers(fast: native.Native, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast.__class__, "gated", lambda self, both, activation: both.chunk(2, -1)[0] + 1)
    assert str(native.find()).startswith("gated gave wrong numbers as ")


def test_a_library_is_built_once(toy: Path, builds: Path) -> None:
    assert compiled.library("toy", [toy])[0].answer() == 42
    (kept,) = builds.iterdir()
    before = kept.stat().st_mtime_ns
    assert compiled.library("toy", [toy])[0].answer() == 42
    assert kept.stat().st_mtime_ns == before
    toy.write_text(TOY.replace("42", "43"))
    assert compiled.library("toy", [toy])[0].answer() == 43


@pytest.mark.parametrize("left", [0, 100, 5000])
def test_a_broken_library_is_built_again(toy: Path, builds: Path, left: int) -> None:
    toy.write_text(TOY.replace("42", str(left)))
    compiled.library("toy", [toy])
    (kept,) = builds.iterdir()
    whole = kept.read_bytes()
    kept.unlink()  # the one that is loaded must not change
    kept.write_bytes(whole[:left])
    assert compiled.library("toy", [toy])[0].answer() == left
    assert [path.read_bytes() == whole for path in builds.iterdir()] == [True]


def test_two_builds_at_once(toy: Path, builds: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: compiled.library("toy", [toy])[0], range(4)))
    assert [library.answer() for library in made] == [42] * 4
    assert all(path.suffix == ".so" for path in builds.iterdir())


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux tells what is loaded")
def test_threads_are_those_of_torch(fast: native.Native) -> None:
    """A second runtime beside torch's would fight with it."""
    assert len(compiled.runtimes()) == 1
    assert compiled.parallel() != 0
