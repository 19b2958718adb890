"""The conformance kit for every method on targets of four kinds: full attention, sliding windows, latents, states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import golden
import pytest
import torch
import untrained

from outrider.core import registry
from outrider.core.conformance import NAMES, check, failures
from outrider.core.errors import OutriderError
from outrider.core.target.model import SLACK, TargetModel
from outrider.core.weights.checkpoint import describe

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(not golden.NAMES, reason=golden.REASON)]

KINDS = {"full": "qwen3", "sliding": "gemma3", "latent": "deepseek_v3", "states": "qwen3_5"}
CONTEXT = 256
QUICK = tuple(name for name in NAMES if name != "rejection")  # that law is each method's own test; it needs many draws
Weights = Callable[[Path, untrained.Size], Path] | None

WEIGHTS: dict[str, Weights] = {
    "suffix": None,
    "prompt_lookup": None,
    "lookahead": None,
    "layerskip": None,
    "mtp": None,
    "eagle": untrained.eagle,
    "dflash": untrained.dflash,
    "medusa": untrained.medusa,
    "draft_model": lambda folder, size: golden.FOLDER / "llama",
}
REFUSED = {  # method and kind: why it may not ride there
    ("layerskip", "states"): "",
    ("mtp", "full"): "",
    ("mtp", "sliding"): "",
}


@pytest.fixture(scope="module")
def targets() -> dict[str, TargetModel]:
    return {}


def target_of(kind: str, targets: dict[str, TargetModel]) -> TargetModel:
    if kind not in targets:
        folder = golden.FOLDER / KINDS[kind]
        decoder = golden.decoder(folder, torch.float32, CONTEXT + SLACK)
        targets[kind] = TargetModel(decoder, describe(folder), CONTEXT)
    return targets[kind]


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("method", list(WEIGHTS))
def test_no_check_fails(method: str, kind: str, targets: dict[str, TargetModel], tmp_path: Path) -> None:
    target, source = target_of(kind, targets), WEIGHTS[method]
    size = replace(untrained.TINY, layers=target.info.layers)
    options = {"weights": str(source(tmp_path / "weights", size)) if source is not None else None}
    prompt = golden.tensors(KINDS[kind])["greedy.prompt_ids"][0].tolist()
    try:
        registry.build(method, target, options)
    except OutriderError as error:
        assert (method, kind) in REFUSED, error.message
        assert len(error.message) > 20  # a sentence that says why
        return
    assert (method, kind) not in REFUSED
    done = check(target, lambda some: registry.build(method, some, options), [prompt], names=QUICK)
    assert not failures(done)
    assert any(one.verdict == "ok" for one in done)
