"""The fused steps of CUDA in Triton's interpreter, against float64 and against torch's own steps."""

from __future__ import annotations

from dataclasses import dataclass

import golden
import pytest
import torch
import torch.nn.functional as F
import toys
from torch import Tensor

pytest.importorskip("triton", reason="Triton is made for Linux only")

from outrider.core.formats.checkpoint import describe
from outrider.core.model.blocks import mlp
from outrider.core.model.blocks.norm import Norm
from outrider.core.model.cache.layout import KVSlots, TreeMask
from outrider.core.model.capture import Capture
from outrider.core.model.families.spec import Activation, AttentionSpec
from outrider.core.model.kernels import flash, fused, ops
from outrider.core.model.kernels.fused import Triton, failing, find
from outrider.core.model.kernels.interface import Heads
from outrider.core.model.kernels.walk import Steps, settle, walk
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel
from outrider.core.session.chat_cache import ChatCache

BACKEND = Triton()
CPU = torch.device("cpu")
HELD = 192  # rows of a buffer that is no ring


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def line(rows: int) -> Tensor:
    """Bits of rows that stand behind each other."""
    return torch.tensor([(1 << (row + 1)) - 1 for row in range(rows)])


@dataclass
class Case:
    """One pass over one layer, in float64, with every row that was ever held."""

    heads: int = 4
    kv_heads: int = 2
    head: int = 32
    rows: int = 3
    base: int = 62
    window: int = 0
    ring: int = 0
    norm: str = ""  # plain or weighted
    rope: bool = False
    sinks: bool = False
    source: bool = False
    bits: Tensor | None = None  # [S]
    positions: Tensor | None = None  # [T]

    def __post_init__(self) -> None:
        self.loose = torch.arange(self.rows) + self.base if self.positions is None else self.positions
        self.end = self.base + len(self.loose)
        self.at = torch.arange(self.end - self.rows, self.end)
        self.seen = line(self.rows) if self.bits is None else self.bits
        parts = self.heads + (0 if self.source else 2 * self.kv_heads)
        self.mixed = numbers(1, self.rows, parts, self.head)
        self.history = numbers(2, self.end, 2 * self.kv_heads, self.head)
        self.weights = numbers(3, 2, self.head)
        turn = numbers(4, 2, self.rows, 1, self.head)
        self.cos, self.sin = (turn[0], turn[1]) if self.rope else (None, None)
        self.sink = numbers(5, self.heads) if self.sinks else None

    def layer(self, dtype: torch.dtype) -> Heads:
        source = 0 if self.source else None
        spec = AttentionSpec(
            self.heads, self.kv_heads, self.head, None, self.head**-0.5, window=self.window, source=source
        )
        made = [Norm(self.head, w.to(dtype) if self.norm == "weighted" else None, 1e-5) for w in self.weights]
        q_norm, k_norm = made if self.norm else (None, None)
        return Heads(spec, q_norm, None if self.source else k_norm, None if self.sink is None else self.sink.to(dtype))

    def held(self, dtype: torch.dtype) -> Tensor:
        """The buffer before the pass, with nothing of use where no row is."""
        kv = torch.full((self.ring or HELD, 2 * self.kv_heads, self.head), float("nan"), dtype=dtype)
        rows = torch.arange(max(0, self.end - self.ring) if self.ring else 0, self.end)
        if not self.source:
            rows = rows[rows < self.end - self.rows]
        kv[rows % self.ring if self.ring else rows] = self.history[rows].to(dtype)
        return kv

    def run(self, dtype: torch.dtype = torch.float32, kv: Tensor | None = None) -> Tensor:
        slots = self.at % self.ring if self.ring else self.at
        turns = (None, None) if self.cos is None or self.sin is None else (self.cos.to(dtype), self.sin.to(dtype))
        place = KVSlots(
            slots,
            self.ring,
            *turns,
            TreeMask(torch.tensor([self.base]), self.loose[-self.rows :], self.loose, self.seen),
        )
        heads = self.layer(dtype)
        assert BACKEND.attends(heads, dtype)
        return BACKEND.attend(self.mixed.to(dtype), self.held(dtype) if kv is None else kv, heads, place)

    def want(self) -> Tensor:
        """[S, H h] by the definition, row by row."""
        heads, x = self.layer(torch.float64), self.mixed.clone()
        for norm, some in (
            (heads.q_norm, slice(0, self.heads)),
            (heads.k_norm, slice(self.heads, self.heads + self.kv_heads)),
        ):
            if norm is not None:
                x[:, some] = F.rms_norm(x[:, some], (self.head,), norm.weight, norm.eps)
        if self.cos is not None and self.sin is not None:
            some = x[:, : self.heads + self.kv_heads]
            x[:, : self.heads + self.kv_heads] = some * self.cos + some.roll(self.head // 2, -1) * self.sin
        if not self.source:
            self.history[self.at] = x[:, self.heads :]
        out = torch.zeros(self.rows, self.heads, self.head, dtype=torch.float64)
        for s in range(self.rows):
            rows = self.visible(s)
            for head in range(self.heads):
                mate = head * self.kv_heads // self.heads
                keys, values = self.history[rows, mate], self.history[rows, self.kv_heads + mate]
                scores = keys @ x[s, head] * self.head**-0.5
                if self.sink is not None:
                    scores = torch.cat((scores, self.sink[head : head + 1]))
                out[s, head] = scores.softmax(0)[: len(rows)] @ values
        return out.flatten(1)

    def visible(self, s: int) -> list[int]:
        own = int(self.loose[s - self.rows])
        found = []
        for row in range(self.end):
            loose = row - self.base
            position = row if loose < 0 else int(self.loose[loose])
            if (loose < 0 or int(self.seen[s]) >> loose & 1) and (not self.window or position > own - self.window):
                found.append(row)
        return found


BITS = torch.tensor([1, 3, 5, 11, 33, 37]) | 1 << torch.arange(58, 64)  # each sees itself, the last is loose row 63
LOOSE = torch.cat((100 + torch.arange(58) // 7, torch.tensor([108, 109, 109, 110, 109, 111])))
CASES = {
    "one row": Case(rows=1, base=5),
    "nothing before": Case(rows=2, base=0),
    "the last of a tile": Case(rows=1, base=63),
    "the first of a tile": Case(rows=1, base=64),
    "across tiles": Case(rows=5, base=126, rope=True),
    "two tiles of queries": Case(rows=9, base=70),
    "the highest tile": Case(heads=10, kv_heads=1, rows=7, base=60, head=16),
    "no groups": Case(heads=2, kv_heads=2, rows=2),
    "groups of three": Case(heads=3, kv_heads=1, rows=6),
    "head of 80": Case(head=80, norm="weighted", rope=True),
    "head of 6": Case(head=6, rope=True),
    "head of 256": Case(head=256, heads=2, kv_heads=1, rows=2, norm="plain"),
    "normed": Case(norm="weighted", rope=True),
    "sinks": Case(sinks=True, window=9),
    "window": Case(window=20, base=150, rows=4),
    "window of one": Case(window=1, base=20),
    "ring": Case(window=20, ring=40, base=150, rows=6, rope=True),
    "ring that is not full": Case(window=60, ring=100, base=30, rows=4),
    "source": Case(source=True, norm="plain", rope=True, base=66),
    "tree": Case(bits=torch.tensor([1, 3, 5, 11]), positions=torch.tensor([62, 63, 63, 64]), rows=4),
    "wide tree": Case(heads=2, kv_heads=1, bits=BITS, positions=LOOSE, rows=6, base=100, window=8),
}


@pytest.mark.parametrize("name", list(CASES))
def test_attention(name: str) -> None:
    case = CASES[name]
    torch.testing.assert_close(case.run().double(), case.want(), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("base", [62, 150])
@pytest.mark.parametrize("window", [0, 100, 20])
def test_programs_that_take_several_tiles(monkeypatch: pytest.MonkeyPatch, base: int, window: int) -> None:
    """Two programs for three tiles; with a window the first tiles are nobody's."""
    monkeypatch.setattr(flash, "_parts", lambda *_: 2)
    case = Case(base=base, window=window)
    torch.testing.assert_close(case.run().double(), case.want(), atol=2e-5, rtol=2e-5)


def test_parts_that_are_not_added_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "_JOINED", 2)
    case = Case(base=150)
    torch.testing.assert_close(case.run().double(), case.want(), atol=2e-5, rtol=2e-5)


def test_more_queries_than_one_program_takes() -> None:
    case = Case(heads=6, kv_heads=1, head=16, rows=13, base=3)
    torch.testing.assert_close(case.run(torch.float16).double(), case.want(), atol=5e-3, rtol=5e-3)


@pytest.mark.parametrize("name", ["normed", "ring", "sinks"])
def test_attention_in_half_precision(name: str) -> None:
    case = CASES[name]
    torch.testing.assert_close(case.run(torch.float16).double(), case.want(), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("name", ["normed", "source", "across tiles"])
def test_keys_and_values_are_written(name: str) -> None:
    case = CASES[name]
    kv = case.held(torch.float32)
    before = kv.clone()
    case.run(kv=kv)
    case.want()
    torch.testing.assert_close(kv[case.at].double(), case.history[case.at], atol=1e-5, rtol=1e-5)
    kv[case.at] = before[case.at]
    assert torch.equal(kv.nan_to_num(), before.nan_to_num())


def test_values_are_written_as_they_are_in_bfloat16() -> None:
    case = Case(norm="weighted", rope=True)
    mixed, kv = case.mixed.bfloat16(), case.held(torch.bfloat16)
    q = torch.empty(case.rows * case.heads, case.head, dtype=torch.bfloat16)
    assert case.cos is not None and case.sin is not None
    sight = TreeMask(torch.tensor([case.base]), case.at, case.at, case.seen)
    place = KVSlots(case.at, 0, case.cos.bfloat16(), case.sin.bfloat16(), sight)
    flash._prepared(mixed, kv, q, case.layer(torch.bfloat16), place)
    assert torch.equal(kv[case.at, case.kv_heads :], mixed[:, case.heads + case.kv_heads :])
    case.want()
    torch.testing.assert_close(kv[case.at].double(), case.history[case.at], atol=0.05, rtol=0.05)


@pytest.mark.parametrize("window", [0, 20])
def test_a_row_does_not_depend_on_its_neighbours(window: int) -> None:
    """In fp32, where all tiles of queries are of one height: nine rows are two of them."""
    case = Case(rows=9, base=61, window=window, rope=True)
    kv = case.held(torch.float32)
    together = case.run(kv=kv)
    for s in (0, 3, 8):
        alone = Case(rows=1, base=61 + s, window=window, rope=True)
        alone.mixed = case.mixed[s : s + 1]
        assert case.cos is not None and case.sin is not None
        alone.cos, alone.sin = case.cos[s : s + 1], case.sin[s : s + 1]
        assert torch.equal(alone.run(kv=kv)[0], together[s])


def test_what_attention_takes() -> None:
    plain = Case(norm="weighted").layer(torch.float32)
    assert plain.q_norm is not None
    centred = Norm(32, plain.q_norm.weight, 1e-5, centred=True)
    assert not BACKEND.attends(Heads(plain.spec, centred, centred, None), torch.float32)
    assert not BACKEND.attends(Heads(plain.spec, plain.q_norm, None, None), torch.float32)
    assert not BACKEND.attends(plain, torch.float64)
    assert not BACKEND.attends(Case(head=258).layer(torch.float32), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 100), (1, 4096), (0, 8)], ids=str)
def test_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = numbers(1, *shape).to(dtype), numbers(2, shape[-1]).to(dtype)
    rtol = 2 * torch.finfo(dtype).eps + 1e-6
    for some in (weight, None):
        want = F.rms_norm(x.double(), shape[-1:], None, 1e-3).to(dtype)
        want = want if some is None else want * some
        torch.testing.assert_close(BACKEND.rms_norm(x, some, 1e-3), want, atol=0.0, rtol=rtol)


def test_norm_of_a_part_of_a_row() -> None:
    wide = numbers(1, 3, 4, 6).float()
    for x in (wide[:, :2], wide[:, 1]):
        assert torch.equal(BACKEND.rms_norm(x, None, 1e-6), BACKEND.rms_norm(x.contiguous(), None, 1e-6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", list(mlp.ACTIVATIONS))
def test_gate(activation: Activation, dtype: torch.dtype) -> None:
    both = torch.cat((numbers(1, 3, 2400) * 5, torch.full((3, 2), float("nan"))), 1).to(dtype)
    want = mlp.ACTIVATIONS[activation](*both.double().chunk(2, -1))
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(
        BACKEND.gated(both, activation).double(), want, atol=4 * eps, rtol=4 * eps, equal_nan=True
    )


def test_the_test_on_the_device() -> None:
    assert failing(BACKEND, CPU, torch.float16) is None

    class Wrong(Triton):
        def gated(self, both: Tensor, activation: Activation) -> Tensor:
            return super().gated(both, activation) + 1

    assert failing(Wrong(), CPU, torch.float16) == "gated"


def test_why_there_is_no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert find() == "the GPU's capability is 7.5, at least 8.0 is needed"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(fused, "failing", lambda *_: "gated")
    assert find() == "gated gave wrong numbers on this GPU"

    def breaks(*_: object) -> None:
        raise RuntimeError("no C compiler\nat all")

    monkeypatch.setattr(fused, "failing", breaks)
    assert find() == "Triton cannot be used: RuntimeError: no C compiler"
    monkeypatch.setattr(fused, "failing", lambda *_: None)
    assert isinstance(find(), Triton)


def recurrence(memory: Tensor, q: Tensor, steps: Steps) -> tuple[Tensor, Tensor]:
    """Reads and the memory at the end by the definition, in float64."""
    memory, share = memory.double(), steps.values.shape[1] // q.shape[1]
    keys, queries = (part.double().repeat_interleave(share, 1) for part in (steps.keys, q))
    reads = []
    for t in range(len(q)):
        memory = memory * steps.decays[t].double()[:, None, None]
        write = steps.values[t].double()
        if steps.betas is not None:
            write = (write - torch.einsum("hkv,hk->hv", memory, keys[t])) * steps.betas[t].double()[:, None]
        memory = memory + keys[t][:, :, None] * write[:, None]
        reads.append(torch.einsum("hkv,hk->hv", memory, queries[t]))
    return torch.stack(reads), memory


def tokens(corrects: bool) -> tuple[Tensor, Tensor, Steps]:
    """A memory [4, 20, 10], queries and steps of five tokens; two heads share a key."""
    mixed = numbers(1, 5, 2 * 2 * 20 + 4 * 10).float()  # parts of wider rows
    q, k, v = mixed.split([40, 40, 40], 1)
    rates = numbers(2, 2, 5, 4).sigmoid().float()
    steps = Steps(F.normalize(k.view(5, 2, 20), dim=-1), v.view(5, 4, 10), rates[0], rates[1] if corrects else None)
    return numbers(3, 4, 20, 10).float(), q.view(5, 2, 20), steps


@pytest.mark.parametrize("corrects", [True, False])
def test_walk_and_settle(corrects: bool) -> None:
    memory, q, steps = tokens(corrects)
    before = memory.clone()
    reads, end = recurrence(memory, q, steps)
    found = walk(memory, q, steps)
    torch.testing.assert_close(found.double(), reads, atol=1e-5, rtol=1e-5)
    assert torch.equal(memory, before)
    elsewhere = torch.zeros_like(memory)
    settle(memory, steps, torch.tensor([5]), elsewhere)
    torch.testing.assert_close(elsewhere.double(), end, atol=1e-5, rtol=1e-5)
    assert torch.equal(memory, before)
    settle(memory, steps, torch.tensor([0]))
    assert torch.equal(memory, before)
    settle(memory, steps, torch.tensor([3]))
    rest = Steps(*(None if part is None else part[3:] for part in steps))  # type: ignore[arg-type]
    assert torch.equal(walk(memory, q[3:], rest), found[3:])
    settle(memory, rest, torch.tensor([2]))
    assert torch.equal(memory, elsewhere)


SOME = [name for name in ("gpt_oss", "qwen3_5") if name in golden.NAMES]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name != "qwen3_5" else ()) for name in SOME]
)
def test_a_whole_model_says_the_same(name: str) -> None:
    """After a prompt that torch's own steps have read: logits of a draft, and greedy text."""
    known = golden.tensors(name)
    model = golden.decoder(golden.FOLDER / name, torch.float32, 64)
    ids, prompt = known["input_ids"][0], known["greedy.prompt_ids"][0]
    read, chat_cache = model.new_cache(64), model.new_cache(64)
    with ops.only("cpu", None):
        for cache, some in ((read, ids[:20]), (chat_cache, prompt[:-1])):
            model.run(some, cache)
            cache.commit(len(some))
    said = prompt[-1:]
    with ops.only("cpu", BACKEND):
        logits = model.run(ids[20:24], read).logits
        for length in range(len(prompt), len(prompt) + 3):
            said = torch.cat((said, model.run(said[-1:], chat_cache).logits.argmax(-1)))
            chat_cache.commit(length)
    golden.assert_close(logits, known["logits"][0, 20:24], atol=golden.tolerance(name))
    assert torch.equal(said[1:], known["greedy.new_ids"][0, :3])


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in ("qwen3_5", "nemotron_h") if name in golden.NAMES])
def test_states_of_a_whole_model_roll_back(name: str) -> None:
    """A draft of which two tokens hold, on the host's way and on the device's."""
    folder = golden.FOLDER / name
    model = golden.decoder(folder, torch.float32, 64 + MAX_DRAFT_ROWS)
    prompt = golden.tensors(name)["greedy.prompt_ids"][0, :20].tolist()
    with ops.only("cpu", None):
        want = toys.answer(ChatCache(TargetModel(model, describe(folder), 64)), prompt, limit=9).token_ids
    with ops.only("cpu", BACKEND):
        for capture in (None, Capture()):
            drafter = toys.guard(toys.Knows(len(prompt), want, right=2, vocab=model.spec.vocab))
            chat_cache = ChatCache(TargetModel(model, describe(folder), 64, capture))
            got = toys.answer(chat_cache, prompt, drafter, limit=9)
            assert got.token_ids == want and got.passes == 3
