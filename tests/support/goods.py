"""One small drafter of every form that is read, as it should be, for the toy checkpoint: what tests break or poison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dflash_files
import eagles
import layers
import peagles
import toys
import untrained

from outrider.core.model.model import TargetModel

VOCAB = untrained.TOY.vocab
CONTEXT = 200


@dataclass(frozen=True, slots=True)
class Good:
    """A drafter that is as it should be."""

    method: str
    make: Callable[[Path], Path]
    weights: str = "model.safetensors"
    settings: str = "config.json"
    family: str = "llama"  # of the target
    own: str = ""  # names of tensors that belong to the drafter begin so
    spare: tuple[str, ...] = ()  # tensors that it can do without
    unread: tuple[str, ...] = ()  # numbers of its config that mean nothing here


def _dflash(kind: str) -> Callable[[Path], Path]:
    return lambda path: dflash_files.write(path, dflash_files.config(kind, VOCAB), dflash_files.tensors(kind, VOCAB))


def _eagle(kind: str) -> Callable[[Path], Path]:
    return lambda path: eagles.folder(path, kind, vocab=VOCAB)


def _toy(make: Callable[[Path, untrained.Size], Path]) -> Callable[[Path], Path]:
    return lambda path: make(path, untrained.TOY)


COPIES = ("embed_tokens.weight", "lm_head.weight", "confidence_head.proj.bias")
GOODS = {
    "eagle1": Good("eagle", _eagle("eagle1")),
    "eagle3": Good("eagle", _eagle("eagle3"), spare=("t2d",)),
    "eagle31": Good("eagle", _eagle("norm_output"), spare=("t2d",)),
    "eagle3_speculators": Good("eagle", _eagle("norm_before_residual"), spare=("t2d",)),
    "peagle": Good("eagle", lambda path: peagles.folder(path, vocab=VOCAB), spare=("t2d", "embed_tokens.weight")),
    "dflash": Good("dflash", _dflash("dflash")),
    "dspark": Good("dflash", _dflash("dspark"), spare=COPIES),
    "dflash2": Good("dflash", _dflash("dflash2")),
    "dflash_speculators": Good("dflash", _dflash("speculators"), spare=("t2d",)),
    "medusa": Good(
        "medusa",
        _toy(untrained.medusa),
        "medusa_lm_head.safetensors",
        unread=("medusa_num_heads", "medusa_num_layers"),
    ),
    "hydra": Good("medusa", _toy(untrained.hydra), "hydra_lm_head.safetensors", unread=("hydra_num_heads",)),
    "hydra_prefix": Good(
        "medusa", _toy(untrained.hydra_prefix), "hydra_lm_head.safetensors", unread=("hydra_num_heads",)
    ),
    "mtp_copy": Good("mtp", layers.checkpoint, own="model.layers.2.", unread=("eos_token_id",)),
    "mtp_parallel": Good(
        "mtp", _toy(untrained.parallel), "consolidated.safetensors", "params.json", own="extra_heads.", unread=()
    ),
    "assistant": Good("mtp", _toy(untrained.assistant), family="gemma4", unread=("num_kv_shared_layers",)),
    "draft_model": Good("draft_model", lambda path: toys.checkpoint(path, seed=5, layers=1), unread=("eos_token_id",)),
}


def target(name: str, model: TargetModel, **other: Any) -> TargetModel:
    """The target of a drafter with an empty cache, `other` told of it."""
    family = {"architecture": "gemma4"} if GOODS[name].family == "gemma4" else {}
    return TargetModel(model.decoder, replace(model.info, **family, **other), CONTEXT)
