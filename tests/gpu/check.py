"""What only a GPU can show: the same text as on the CPU, the cost of a pass by rows, and the share of memory bandwidth.

Every check is a function that returns a dict of figures; a failure is recorded and the next one runs. Writes one JSON file
and prints a short table last. Runs on the CPU too, with smaller models, so that the script itself is tested there.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import toys

from outrider.core.answer import Conversation
from outrider.core.noise import Noise
from outrider.core.sample import Sampler, Settings
from outrider.core.target.attention import Attention
from outrider.core.target.decoder import Block, Decoder, Weights
from outrider.core.target.linear import Linear, Table, linear
from outrider.core.target.load import tables
from outrider.core.target.mlp import Dense
from outrider.core.target.model import SLACK, TargetModel
from outrider.core.target.norm import Norm
from outrider.core.target.spec import AttentionSpec, DenseSpec, LayerSpec, RopeSpec, TargetSpec
from outrider.core.target.state import Cache
from outrider.core.weights.grouped import Grouped, pack_nibbles, quantise
from outrider.drafters.draft_model import Rider
from outrider.drafters.prompt_lookup import Lookup

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PROMPT = [5, 9, 13, 9, 5, 9, 13]
ROWS = (1, 2, 4, 8, 16)


def moved(model: Decoder, device: torch.device, dtype: torch.dtype = torch.float32) -> Decoder:
    """A toy decoder's copy on another device."""

    def copied(some: Linear) -> Linear:
        return Linear(some.weight.to(device, dtype))

    def norm(some: Norm | None) -> Norm | None:
        return some and Norm(some.width, None if some.weight is None else some.weight.to(device, dtype), some.eps)

    blocks = []
    for block in model.weights.blocks:
        assert isinstance(block.mixer, Attention) and isinstance(block.channel, Dense)
        attention = Attention(block.mixer.spec, copied(block.mixer.mix), copied(block.mixer.out))
        dense = Dense(copied(block.channel.gate_up), copied(block.channel.down), block.channel.activation)
        before, after = norm(block.before_mixer), norm(block.before_channel)
        blocks.append(Block(attention, dense, block.source, before, None, after, None))
    w, final = model.weights, norm(model.weights.norm)
    assert final is not None
    assert isinstance(w.embedding.weight, torch.Tensor)
    table = Table(w.embedding.weight.to(device, dtype), dtype)
    ropes = tables(model.spec, w.rows, dtype, device)
    weights = Weights(table, tuple(blocks), final, copied(w.head), ropes, w.rows)
    return Decoder(model.spec, weights)


def toy_target(device: torch.device) -> TargetModel:
    """The tests' toy, on `device`."""
    cpu = toys.target()
    return TargetModel(moved(cpu.decoder, device), cpu.info, cpu.context)


def same_text() -> dict[str, Any]:
    """Greedy and sampled text on this device, plain and drafted, against the CPU."""
    torch.backends.cuda.matmul.allow_tf32 = False
    checked = 0
    for settings in (toys.GREEDY, toys.SAMPLED, Settings(temperature=0.8, top_p=0.9)):
        want = toys.answer(Conversation(toys.target()), PROMPT, settings=settings).token_ids
        drafters = {
            "plain": None,
            "right": toys.guard(toys.Knows(len(PROMPT), want, right=2)),
            "lookup": toys.guard(Lookup()),
            "draft model": toys.guard(Rider(moved(toys.decoder(1), DEVICE), 300, 48)),
            "states": toys.guard(toys.Listener()),
            "device form": toys.guard(toys.Bigram(device=True)) if DEVICE.type == "cpu" else None,
        }
        for name, drafter in drafters.items():
            got = toys.answer(Conversation(toy_target(DEVICE)), PROMPT, drafter, settings=settings).token_ids
            assert got == want, f"{name} at {settings}: {got} instead of {want}"
            assert drafter is None or not drafter.failed, f"{name} failed"
            checked += 1
    return {"texts": checked}


def same_noise() -> dict[str, Any]:
    """The hash gives the same bits on every device."""
    cpu = Noise(3).uniform_all("target", 77, 50_000, torch.device("cpu"))
    here = Noise(3).uniform_all("target", 77, 50_000, DEVICE).cpu()
    assert torch.equal(cpu, here), "the noise differs between devices"
    logits = torch.randn(4, 50_000, generator=torch.Generator().manual_seed(0))
    for settings in (Settings(temperature=0.7, top_p=0.95), Settings(temperature=1.0, top_p=1.0)):
        one = Sampler(settings, Noise(3)).chain(logits, 5).tolist()
        two = Sampler(settings, Noise(3)).chain(logits.to(DEVICE), 5).tolist()
        assert one == two, f"{settings}: {one} and {two}"
    return {"ids": 50_000}


def random_decoder(size: str, context: int) -> Decoder:
    """A bf16 model of a real shape with random weights: `8b` as Llama 3.1, `1b` as Llama 3.2, `toy` for a CPU."""
    shapes = {
        "8b": (32, 4096, 32, 8, 128, 14336, 128_256),
        "1b": (16, 2048, 32, 8, 64, 8192, 128_256),
        "toy": (2, 256, 4, 2, 64, 512, 1000),
    }
    layers, width, heads, kv, head, mlp, vocab = shapes[size]
    mixer = AttentionSpec(heads, kv, head, RopeSpec(500_000.0, head), head**-0.5)
    layer = LayerSpec(mixer, DenseSpec(mlp))
    spec = TargetSpec("llama", width, vocab, context, 1e-5, (layer,) * layers, tied=False)
    kind: dict[str, Any] = {"device": DEVICE, "dtype": torch.bfloat16}

    def matrix(rows: int, columns: int) -> Linear:
        return Linear(torch.randn(rows, columns, **kind) * columns**-0.5)

    def norm() -> Norm:
        return Norm(width, torch.ones(width, **kind), 1e-5)

    blocks = []
    for index in range(layers):
        attention = Attention(mixer, matrix((heads + 2 * kv) * head, width), matrix(width, heads * head))
        dense = Dense(matrix(2 * mlp, width), matrix(width, mlp), "silu")
        blocks.append(Block(attention, dense, index, norm(), None, norm(), None))
    parts = [(b.mixer.mix, b.mixer.out, b.channel.gate_up, b.channel.down) for b in blocks]
    final = matrix(vocab, width)
    read = sum(linear.nbytes for four in parts for linear in four) + final.nbytes
    rows = context + SLACK
    ropes = tables(spec, rows, torch.bfloat16, DEVICE)
    table = Table(torch.randn(vocab, width, **kind), torch.bfloat16)
    weights = Weights(table, tuple(blocks), norm(), final, ropes, rows, nbytes=read)
    return Decoder(spec, weights)


def timed(call: Callable[[], Any], count: int) -> float:
    """Median milliseconds, the device waited for after each call."""
    for _ in range(3):
        call()
    times = []
    for _ in range(count):
        wait()
        began = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def wait() -> None:
    """Until the device has done everything."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def pass_cost(size: str) -> dict[str, Any]:
    """Milliseconds of a pass by rows at 300 tokens of context, and the bandwidth that one row reaches."""
    model = random_decoder(size, 2048)
    cache: Cache = model.new_cache(1024)
    model.run(torch.randint(0, 1000, (300,), device=DEVICE), cache, last=True)
    cache.commit(300)
    figures: dict[str, Any] = {}
    for rows in ROWS:
        ids = torch.randint(0, 1000, (rows,), device=DEVICE)
        figures[f"ms_{rows}"] = round(timed(lambda ids=ids: model.run(ids, cache), 20), 3)
    figures["gb_per_s"] = round(model.weights.nbytes / figures["ms_1"] / 1e6, 1)
    figures["tokens_per_s"] = round(1e3 / figures["ms_1"], 1)
    prompt = torch.randint(0, 1000, (512,), device=DEVICE)
    cache.commit(0)
    figures["prefill_512_ms"] = round(timed(lambda: model.run(prompt, cache, last=True), 5), 2)
    return figures


def sampling_cost() -> dict[str, Any]:
    """Milliseconds of drawing one token of 128k ids, by kind of filter."""
    row = torch.randn(128_256, device=DEVICE)
    figures = {}
    for name, settings in {
        "greedy": Settings(temperature=0),
        "plain": Settings(temperature=1.0, top_p=1.0),
        "top_p": Settings(temperature=0.7, top_p=0.95),
    }.items():
        sampler = Sampler(settings, Noise(1))
        figures[f"{name}_ms"] = round(timed(lambda s=sampler: s.token(row, 9), 20), 3)
    return figures


def quantised() -> dict[str, Any]:
    """Rows times quantised matrices against the expanded matrix in float64; milliseconds of one, beside bf16, by rows."""
    figures: dict[str, Any] = {}
    size = 4096 if DEVICE.type == "cuda" else 256
    dtype = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
    weight = torch.randn(size, size)
    codes = torch.randint(0, 16, (size, size), dtype=torch.uint8)
    scale = torch.rand(size, size // 32).half()
    kinds = {
        "int4": quantise(weight, 4),
        "int8": quantise(weight, 8),
        "table4": Grouped(pack_nibbles(codes, 32), scale, table=torch.randn(16), bits=4),
        "fp8": Grouped(weight.to(torch.float8_e4m3fn), torch.rand(size, size // 128)),
    }
    plain = linear(weight, None, dtype, DEVICE)
    for rows in (1, 4, 16):
        x = torch.randn(rows, size, dtype=dtype, device=DEVICE)
        figures[f"bf16_{rows}_ms"] = round(timed(lambda x=x: plain(x), 50), 4)
        for name, grouped in kinds.items():
            layer = linear(grouped, None, dtype, DEVICE)
            want = x.double().cpu() @ grouped.expand(torch.float64).T
            error = float((layer(x).double().cpu() - want).abs().max() / want.std())
            assert error < 0.04, f"{name}, {rows} rows: off by {error:.3f}"
            figures[f"{name}_{rows}_ms"] = round(timed(lambda x=x, layer=layer: layer(x), 50), 4)
    return figures


def machine() -> dict[str, Any]:
    """What this ran on."""
    name = torch.cuda.get_device_name(0) if DEVICE.type == "cuda" else "cpu"
    return {
        "device": name,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
    }


def main(out: Path) -> int:
    sizes = ("1b", "8b") if DEVICE.type == "cuda" else ("toy",)
    checks: dict[str, Callable[[], dict[str, Any]]] = {
        "machine": machine,
        "same noise": same_noise,
        "same text": same_text,
        "sampling": sampling_cost,
        "quantised": quantised,
        **{f"pass {size}": lambda size=size: pass_cost(size) for size in sizes},
    }
    results: dict[str, Any] = {}
    for name, check in checks.items():
        began = time.perf_counter()
        try:
            results[name] = {"ok": True, **check()}
        except Exception as error:  # noqa: BLE001 - each check stands alone; the failure is recorded and decides the exit code
            traceback.print_exc()
            results[name] = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        results[name]["seconds"] = round(time.perf_counter() - began, 1)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1))
    print("-" * 60)
    for name, result in results.items():
        words = "  ".join(f"{key} {value}" for key, value in result.items() if key not in ("ok", "seconds"))
        print(f"{'ok  ' if result['ok'] else 'FAIL'} {name:12s} {result['seconds']:6.1f} s  {words}")
    return 0 if all(result["ok"] for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
