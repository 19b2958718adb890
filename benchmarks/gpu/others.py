"""The machine itself, the starter if its parts are there, and transformers if it is installed."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import passes
import shapes
import torch
import toys
from rig import DEVICE, GPU, Figures, capture, fits, seconds

from outrider.core.formats.checkpoint import open_checkpoint
from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.model.load import load_decoder
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel
from outrider.core.session.chat_cache import ChatCache
from outrider.drafters.prompt_lookup import Lookup

PARTS = Path(__file__).resolve().parents[2] / ".parts"
TIE = 2e-3

_TURN, _ANSWER = (1, 4093, 198), (2, 198, 1, 520, 9531, 198)  # around what a user says, by the starter's ids
PROMPTS = tuple(
    (*_TURN, *said, *_ANSWER)
    for said in (
        (1780, 314, 260, 3575, 282, 4649, 47, 19842, 281, 582, 6330, 30),  # the capital of France, in a sentence
        (5820, 1296, 14797, 30),  # three colours
        (19161, 253, 5905, 1517, 338, 10557, 266, 253, 4928, 30),  # a function that reverses a string
        (31530, 549, 253, 1890, 1977, 563, 253, 19018, 30),  # a story about a bicycle
    )
)


def two() -> torch.Tensor:
    """One and one, on the device."""
    return torch.ones((), device=DEVICE) + 1


def machine(figures: Figures) -> None:
    """What this runs on."""
    figures |= {"torch": str(torch.__version__), "python": sys.version.split()[0], "device": "cpu"}
    if GPU:
        free, total = torch.cuda.mem_get_info()
        figures |= {"device": torch.cuda.get_device_name(0), "cuda": torch.version.cuda}
        figures |= {"free_gib": round(free / 2**30, 1), "total_gib": round(total / 2**30, 1)}
    for package in ("triton", "transformers", "msgspec"):
        spec = importlib.util.find_spec(package)
        figures[package] = (
            "none" if spec is None else "stands in" if str(spec.origin).endswith("msgspec.py") else "there"
        )
    figures["copy_gb_per_s"] = round(passes.bandwidth() / 1e9, 1)


# ---------------------------------------------------------------------------------------------------- the starter


def joined(folder: Path, into: Path) -> Path | None:
    """The file whose parts lie in `folder`, put together; None where not all are there. Raises ValueError for wrong checksums."""
    for sums in sorted(folder.glob("*.sha256")):
        lines = [line.split(maxsplit=1) for line in sums.read_text().splitlines()]
        told = {file.strip().lstrip("*"): digest for digest, file in lines}
        name = sums.name.removesuffix(".sha256")
        if not all((folder / part).exists() for part in told if part != name):
            continue
        whole, made = hashlib.sha256(), into / name
        with made.open("wb") as out:
            for part in sorted(each for each in told if each != name):
                data = (folder / part).read_bytes()
                if hashlib.sha256(data).hexdigest() != told[part]:
                    raise ValueError(f"{part} is not what was cut")
                whole.update(data)
                out.write(data)
        if whole.hexdigest() != told[name]:
            raise ValueError(f"{name} is not what was cut")
        return made
    return None


def starter(figures: Figures) -> None:
    """Greedy answers on the device and on the CPU, and the speed of the forms it may be kept in."""
    with tempfile.TemporaryDirectory() as scratch:
        path = joined(PARTS, Path(scratch))
        if path is None:
            figures["skipped"] = "its parts are not there, or not all (packaging/split.sh)"
            return
        there = _loaded(path, WeightFormat(torch.float32, torch.device("cpu")), torch.device("cpu"))
        here = _loaded(path, WeightFormat(torch.float32, DEVICE), DEVICE)
        figures["ties"] = 0
        for number, prompt in enumerate(PROMPTS):
            want = _greedy(there, prompt, None)
            for drafter in (None, Lookup()):
                got = _greedy(here, prompt, drafter)
                if got != want:
                    gap = _gap(there, prompt, want, got)
                    assert gap < TIE, f"prompt {number} with {drafter}: other text at a gap of {gap:.2e}"
                    figures["ties"] += 1
        figures["prompts"] = len(PROMPTS)
        dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16} if GPU else {}
        for name, dtype in dtypes.items():
            for form in (WeightFormat(dtype, DEVICE, keep="none"), WeightFormat(dtype, DEVICE)):
                cache = ChatCache(_loaded(path, form, DEVICE))
                for limit in (8, 128):
                    cache.target.rewind(0)
                    report = toys.answer(cache, PROMPTS[0], limit=limit)
                figures[f"tokens_per_s {name} {'expanded' if form.keep == 'none' else 'as stored'}"] = round(
                    report.tokens_per_second, 1
                )


def _loaded(path: Path, form: WeightFormat, device: torch.device) -> TargetModel:
    checkpoint = open_checkpoint(path)
    try:
        made = load_decoder(checkpoint, form, 1024 + MAX_DRAFT_ROWS)
    finally:
        checkpoint.close()
    return TargetModel(made, shapes.info(made, "starter"), 1024, capture() if device.type == "cuda" else None)


def _greedy(target: TargetModel, prompt: tuple[int, ...], drafter: Lookup | None) -> list[int]:
    target.rewind(0)
    guarded = None if drafter is None else toys.guard(drafter)
    return toys.answer(ChatCache(target), prompt, guarded, limit=48 if GPU else 8).token_ids


def _gap(target: TargetModel, prompt: tuple[int, ...], want: list[int], got: list[int]) -> float:
    at = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), min(len(got), len(want)))
    target.rewind(0)
    best = target.forward(torch.tensor([*prompt, *want[:at]]), last=True).logits[0].topk(2).values
    return float(best[0] - best[1])


# ---------------------------------------------------------------------------------------------------- transformers


def transformers(figures: Figures) -> None:
    """Plain decoding of an 8B by transformers' `generate` with a static cache, which it compiles on a GPU."""
    if importlib.util.find_spec("transformers") is None:
        figures["skipped"] = "transformers is not installed"
        return
    if not GPU:
        figures["skipped"] = "needs a GPU"
        return
    if not fits(24 << 30, figures, "skipped"):
        return
    library: Any = importlib.import_module("transformers")

    figures["version"] = library.__version__
    config = library.LlamaConfig(**{key: value for key, value in shapes.LLAMA_8B.items() if key != "model_type"})
    with seconds(figures, "built_s"), torch.device(DEVICE):
        model: Any = library.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    ids = torch.randint(5, 1000, (1, passes.PROMPT), device=DEVICE)

    def spent(count: int, **more: Any) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.inference_mode():
            model.generate(ids, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0, **more)
        torch.cuda.synchronize()
        return time.perf_counter() - began

    spent(4)
    figures["dynamic_tokens_per_s"] = round(48 / (spent(49) - spent(1)), 1)
    with seconds(figures, "compiled_s"):
        spent(129, cache_implementation="static")
        spent(129, cache_implementation="static")
    whole = spent(129, cache_implementation="static")
    figures["static_tokens_per_s"] = round(128 / (whole - spent(1, cache_implementation="static")), 1)
