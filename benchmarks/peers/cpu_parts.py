"""One measurement of `cpu_speed.py`, in this process: prints JSON. Each kind imports only what its environment has.

python cpu_parts.py ours MODEL THREADS TOKENS FORM [DRAFT LENGTH]
python cpu_parts.py theirs FOLDER THREADS TOKENS      transformers
python cpu_parts.py llama MODEL.gguf THREADS TOKENS   xllamacpp
python cpu_parts.py memory "" THREADS TOKENS
python cpu_parts.py path MODEL
python cpu_parts.py folder MODEL FOLDER               as transformers reads it
"""

from __future__ import annotations

import dataclasses
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PROMPT = "The history of the bicycle begins in the early nineteenth century, when"
FORMS = {  # dtype and what is done to matrices
    "fp32": ("fp32", "none"),
    "bf16": ("bf16", "none"),
    "int8": ("bf16", "int8"),
    "int4": ("bf16", "int4"),
    "stored": ("bf16", "auto"),
}
ROWS = (1, 2, 4, 8, 16)
PASSES = 15  # of each width
LENGTH = 64  # tokens before a timed pass
BUFFER = 1 << 30  # bytes of the buffer that memory is measured with


def ours(model: str, threads: int, tokens: int, form: str, draft: str = "", length: str = "4") -> dict[str, Any]:
    """Plain answers through the engine, passes by rows, and their matrix products alone; drafted answers if asked for."""
    from identity import Undisturbed

    from outrider.core.base.protocol import DrafterChoice, Generate, ModelChoice, Report, Sampling, Step
    from outrider.core.session.engine import Engine

    dtype, quantize = FORMS[form]
    engine = Engine()
    choice = ModelChoice(model=model, device="cpu", dtype=dtype, quantize=quantize, context=2048, threads=threads)
    loaded = engine.load(choice, 1, lambda event: None, lambda: False)
    events: list[Any] = []

    def answer(drafter: DrafterChoice, count: int) -> Report:
        engine.forget()
        sampling = Sampling(temperature=0, max_tokens=count)
        request = Generate(1, choice, prompt=PROMPT, sampling=sampling, drafter=drafter)
        events.clear()
        return engine.generate(request, events.append, Undisturbed())

    plain = DrafterChoice(name="none")
    answer(plain, 8)
    report = answer(plain, tokens)
    telling = statistics.median(event.host_ms for event in events[2:] if isinstance(event, Step))
    target = loaded.cache.target
    found: dict[str, Any] = {
        "tokens_per_second": report.tokens_per_second,
        "tokens": len(report.token_ids),
        "load_s": loaded.loaded.load_s,
        "weights_mb": target.decoder.weights.nbytes / 1e6,
        "loop_ms": report.timing.decode_s / max(1, report.passes) * 1e3,
    }
    if draft:
        rider = DrafterChoice(name="draft_model", weights=draft, tokens=int(length))
        answer(rider, 8)
        drafted, again = answer(rider, tokens), answer(plain, tokens)
        per_pass = len(drafted.token_ids) / max(1, drafted.passes)
        speedup = drafted.tokens_per_second / again.tokens_per_second
        found["drafted"] = {
            "speedup": speedup,
            "tokens_per_pass": per_pass,
            "same": drafted.token_ids == report.token_ids,
        }
    found |= passes(engine)
    found["host_ms"] = telling + found["round_ms"] - found["pass_ms"]["1"]  # beside and within rounds
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return found


def passes(engine: Any) -> dict[str, Any]:
    """Milliseconds of a pass by rows, of the same matrix products alone, and of a plain round, in turn."""
    import torch

    from outrider.core.decode.rounds import Rounds
    from outrider.core.sampling.noise import Noise
    from outrider.core.sampling.sample import Sampler, Settings

    assert engine.model is not None
    target = engine.model.cache.target
    engine.forget()
    target.forward(list(range(5, 5 + LENGTH)), last=True)
    target.commit(LENGTH)
    tokens = list(range(5, 6 + LENGTH))
    rounds = Rounds(target, tokens, Sampler(Settings(temperature=0), Noise(1)))

    def plain_round() -> None:
        rounds.run(None, 0)
        target.commit(LENGTH)
        del tokens[LENGTH + 1 :]

    layers = [*linears(target.decoder.weights.blocks), target.decoder.weights.head]
    found: dict[str, Any] = {"pass_ms": {}, "product_ms": {}, "read_mb": sum(layer.nbytes for layer in layers) / 1e6}
    with torch.inference_mode():
        for rows in ROWS:
            inputs = {
                size: torch.randn(rows, size).to(target.dtype) for size in {layer.features[1] for layer in layers}
            }
            work: dict[str, Callable[[], Any]] = {
                "pass_ms": lambda rows=rows: target.forward(list(range(7, 7 + rows))),
                "product_ms": lambda inputs=inputs: [layer(inputs[layer.features[1]]) for layer in layers],
            }
            made = medians({**work, "round_ms": plain_round} if rows == 1 else work)
            found |= {"round_ms": made.pop("round_ms")} if rows == 1 else {}
            for name, middle in made.items():
                found[name][str(rows)] = middle
    found["products_ms"] = found["product_ms"]["1"]
    found["beside_ms"] = found["pass_ms"]["1"] - found["products_ms"]
    return found


def linears(part: Any) -> Iterator[Any]:
    """Every matrix below a part of the model, in the order in which it is declared."""
    from outrider.core.model.kernels.linear import Linear

    if isinstance(part, Linear):
        yield part
    elif isinstance(part, tuple | list):
        for each in part:
            yield from linears(each)
    elif dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            if not field.name.startswith("_"):
                yield from linears(getattr(part, field.name))


def medians(work: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Milliseconds of several things, done in turn."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(PASSES + 2):
        for name, call in work.items():
            began = time.perf_counter()
            call()
            if turn >= 2:
                times[name].append((time.perf_counter() - began) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def theirs(folder: str, threads: int, tokens: int) -> dict[str, Any]:
    """transformers' greedy `generate` in bf16, the first token taken off."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(threads)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    ids = torch.tensor([AutoTokenizer.from_pretrained(folder)(PROMPT)["input_ids"]])

    def spent(count: int) -> float:
        began = time.perf_counter()
        with torch.inference_mode():
            model.generate(ids, max_new_tokens=count, min_new_tokens=count, do_sample=False)
        return time.perf_counter() - began

    spent(8)
    return {"tokens_per_second": (tokens - 1) / (spent(tokens) - spent(1))}


def llama(path: str, threads: int, tokens: int) -> dict[str, Any]:
    """llama.cpp's own figure for plain greedy decoding; the first answer warms up."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = path, 2048, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    found: Any = {}
    for count in (8, tokens):
        asked = {"prompt": PROMPT, "max_tokens": count, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        made = server.handle_completions(asked)
        found = json.loads(made) if isinstance(made, str | bytes) else made
    return {"tokens_per_second": found["timings"]["predicted_per_second"]}


def memory(_: str, threads: int, tokens: int) -> dict[str, Any]:
    """Bytes in a second of summing up a large buffer, and of copying it (read and written)."""
    import torch

    torch.set_num_threads(threads)
    source = torch.ones(BUFFER // 4)
    place = torch.empty_like(source)
    found = medians({"read": lambda: source.sum(), "copy": lambda: place.copy_(source)})
    return {"read_gb_per_s": BUFFER / found["read"] / 1e6, "copy_gb_per_s": 2 * BUFFER / found["copy"] / 1e6}


def folder(model: str, into: str) -> dict[str, Any]:
    """The model as config, safetensors and tokenizer."""
    import starter

    return {"folder": str(starter.folder(Path(into), model=model))}


def path(model: str) -> dict[str, Any]:
    """Where the file of a model lies."""
    from outrider.core.library.library import resolve

    return {"path": str(resolve(model))}


def main(kind: str, *arguments: str) -> None:
    if kind in ("folder", "path"):
        found = {"folder": folder, "path": path}[kind](*arguments)
    else:
        model, threads, tokens, *more = arguments
        measured: Callable[..., dict[str, Any]] = {"ours": ours, "theirs": theirs, "llama": llama, "memory": memory}[
            kind
        ]
        found = measured(model, int(threads), int(tokens), *more)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
