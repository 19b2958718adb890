"""Where a run stands, on disk: weights, what the optimiser knows, the number of steps. One file, replaced as a whole."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from outrider.core.base.errors import BrokenFileError

NAME = "checkpoint.safetensors"
AGAIN = "Delete the file; the run then begins its training anew, with the data that it has."


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """What changes in training, by name."""
    return {name: part for name, part in module.named_parameters() if part.requires_grad}


def save(
    folder: Path, step: int, module: nn.Module, optimiser: torch.optim.Optimizer, seen: Mapping[str, float]
) -> None:
    """Write all that the next step depends on. The old file is there until the new one is whole. Raises OSError."""
    tensors: dict[str, Tensor] = {}
    for name, part in trained(module).items():
        tensors[f"weight.{name}"] = part.detach()
        for key, value in optimiser.state.get(part, {}).items():
            tensors[f"{key}.{name}"] = value.detach() if isinstance(value, Tensor) else torch.tensor(value)
    unready = folder / f"{NAME}.part"
    whole = {name: tensor.contiguous().cpu().clone() for name, tensor in tensors.items()}
    save_file(whole, unready, metadata={"step": str(step), "seen": json.dumps(dict(seen))})
    with unready.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(unready, folder / NAME)


def load(folder: Path, module: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[int, dict[str, float]]:
    """Put back what `save` wrote; the step that is next and the figures, (0, {}) where nothing was written.

    Raises BrokenFileError if the file is of another drafter or damaged.
    """
    path = folder / NAME
    if not path.exists():
        return 0, {}
    try:
        with safe_open(path, "pt") as file:  # pyright: ignore[reportGeneralTypeIssues] - a context manager without types
            names, told = set(file.keys()), file.metadata() or {}
            for name, part in trained(module).items():
                with torch.no_grad():
                    part.copy_(file.get_tensor(f"weight.{name}"))
                keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{key}.{name}" in names]
                if keys:
                    optimiser.state[part] = {key: _put(file.get_tensor(f"{key}.{name}"), key, part) for key in keys}
            return int(told["step"]), json.loads(told["seen"])
    except (KeyError, ValueError, RuntimeError, OSError, SafetensorError) as error:
        raise BrokenFileError(f"{path} is not a checkpoint of this run: {error}", AGAIN) from error


def _put(tensor: Tensor, key: str, part: Tensor) -> Tensor:
    return tensor if key == "step" else tensor.to(part.device)
