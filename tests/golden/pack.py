"""Write `tests/data/golden` from the whole files that the scripts beside this one made.

    GOLDEN=FOLDER python tests/golden/pack.py

The folder holds `golden` (make_golden.py) and `golden_drafters` (drafters/make_*.py). Needs transformers 5.24.0 to learn in
which order the random weights were drawn. `tests/support/golden_files.py` reads what is packed here, without transformers.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1] / "support"))
import golden_files
from golden_files import Tensors

TEXTS = ("config.json", "config_hub.json", "config_transformers5.json", "golden.json", "pair.json")
PICKLES = {"pytorch_model.bin": "model.safetensors", "medusa_lm_head.pt": "medusa_lm_head.safetensors"}
# What tests read of the reference's outputs. The logits of float32 are left out: those of float64 stand for both.
READ = (
    r"(long\.)?input_ids|greedy\.\w+|f64\.logits|long\.logits|h\.\w+|dequantised\..*|p\d\.(prompt|greedy)_ids"
    r"|p\d\.prefill\.(input_ids|state|feature|logits|head_logits)|p\d\.(chain\.)?r\d+\.(\w+_)?logits(_\w+)?"
    r"|p\d\.r\d+\.(candidates|exit_query)"
)
UNREAD = r".*(confidence|base)_logits"
WHOLE = {"medusa": r"p\d\.prefill\.state", "gpt_oss_mxfp4": r"dequantised\..*"}  # inputs of a test, or values of 4 bits


class Packer:
    """Knows what was written so far, so that nothing is stored twice."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.known: dict[bytes, list[str]] = {}

    def pack(self, folder: Path, recipes: list[dict[str, Any]]) -> bytes:
        """One folder as the bytes of its packed file."""
        random = [golden_files.draw(recipe) for recipe in recipes]
        drawn = [[some.flatten().numpy().tobytes() for some in each] for each in random]
        head: dict[str, Any] = {"random": recipes, "digest": golden_files.digest(random), "tensors": {}}
        head["texts"] = {name: (folder / name).read_text() for name in TEXTS if (folder / name).exists()}
        head["pickles"] = {name: same for name, same in PICKLES.items() if (folder / name).exists()}
        stored = []
        for file in sorted(folder.glob("*.safetensors")):
            tensors = load_file(file)
            if file.name.startswith("prompts"):
                continue
            if file.name == "golden.safetensors":
                tensors = dict(_reduced(folder.name, tensors))
            sources = head["tensors"][file.name] = {}
            for name, tensor in tensors.items():
                source = self._source(tensor, drawn)
                if source is None:
                    stored.append(tensor)
                    source = {"dtype": str(tensor.dtype), "shape": list(tensor.shape)}
                    if tensor.numel() > 64:
                        where = str(file.relative_to(self.top))
                        self.known.setdefault(golden_files.planes(tensor), [where, name])
                sources[name] = source
        text = json.dumps(head).encode()
        body = b"".join(golden_files.planes(tensor) for tensor in stored)
        return lzma.compress(len(text).to_bytes(8, "little") + text + body, preset=9 | lzma.PRESET_EXTREME)

    def _source(self, tensor: Tensor, drawn: list[list[bytes]]) -> dict[str, Any] | None:
        data, shape = tensor.contiguous().flatten().numpy().tobytes(), list(tensor.shape)
        for seed, row in enumerate(drawn):
            for number, some in enumerate(row):
                if (
                    tensor.dtype == torch.float32
                    and tensor.numel() > 3
                    and (at := some.find(data)) >= 0
                    and at % 4 == 0
                ):
                    return {"draw": [seed, number, at // 4], "shape": shape}
        same = self.known.get(golden_files.planes(tensor))
        return {"same": same} if same and tensor.numel() > 64 else None


def _reduced(folder: str, tensors: Tensors) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors.items():
        if re.fullmatch(READ, name) and not re.fullmatch(UNREAD, name):
            whole = not tensor.is_floating_point() or re.fullmatch(WHOLE.get(folder, ""), name)
            yield name, tensor if whole else golden_files.sketch(tensor)


def recipes(folder: Path, report: dict[str, Any]) -> list[dict[str, Any]]:
    """What the reference's script drew for a family, in its order: see `randomise` of make_golden.py."""
    import make_golden
    import running

    found: list[dict[str, Any]] = []
    randomise = make_golden.randomise

    def noted(module: torch.nn.Module, seed: int) -> None:
        found.append({"seed": seed, "draws": list(running.draws(module))})
        randomise(module, seed)

    make_golden.randomise = noted
    try:
        make_golden.rebuild(folder.name, report["seed"])
    finally:
        make_golden.randomise = randomise
    return found


def main() -> None:
    """All folders; those that others refer to come first."""
    top = Path(os.environ["GOLDEN"])
    report = json.loads((top / "golden" / "report.json").read_text())
    base = {
        "gemma3_nested": "gemma3",
        "gemma4_nested": "gemma4_e",
        "qwen3_5_nested": "qwen3_5",
        "gpt_oss_mxfp4": "gpt_oss",
    }
    base["qwen3_5_moe_nested"] = "qwen3_5_moe"
    mtp = {f"mtp_{name}": name for name in ("deepseek_v3", "glm4_moe", "glm4_moe_lite", "qwen3_5", "qwen3_next")}
    base |= mtp | {"mtp_mimo": "qwen2"}
    names = [f"golden/{name}" for name in sorted(report, key=lambda name: (name in base, name))]
    drafters = sorted(path.name for path in (top / "golden_drafters").iterdir() if (path / "config.json").exists())
    names += [
        f"golden_drafters/{name}" for name in sorted(drafters, key=lambda name: (not name.startswith("target"), name))
    ]
    packer, drawn = Packer(top), dict[str, list[dict[str, Any]]]()
    for name in names:
        folder, source = top / name, base.get(Path(name).name, Path(name).name)
        if source not in drawn and source in report:
            drawn[source] = recipes(top / "golden" / source, report[source])
        data = packer.pack(folder, drawn.get(source, []))
        path = golden_files.DATA / f"{name}.xz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        print(f"{len(data):8d} {name}")
    (golden_files.DATA / "order.json").write_text(json.dumps([f"{name}.xz" for name in names], indent=1) + "\n")


if __name__ == "__main__":
    main()
