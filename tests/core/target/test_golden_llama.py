"""The llama family against reference logits, states and greedy continuations of tiny golden checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from outrider.core.target.decoder import Decoder
from outrider.core.target.load import load_decoder
from outrider.core.weights.checkpoint import open_checkpoint

GOLDEN = Path(__file__).resolve().parents[4] / "shared" / "data" / "golden"
NAMES = ("llama", "llama_bias", "llama_rope_linear", "llama_rope_dynamic", "llama_rope_llama3", "llama_rope_yarn")
CPU = torch.device("cpu")

pytestmark = pytest.mark.skipif(not GOLDEN.is_dir(), reason="the golden checkpoints are not beside this checkout")


@pytest.fixture(params=NAMES)
def folder(request: pytest.FixtureRequest) -> Path:
    return GOLDEN / request.param


@pytest.fixture(params=["config.json", "config_hub.json"])
def either_config(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Path:
    """The checkpoint with its config in one of the two published forms."""
    if not (folder / request.param).exists():
        pytest.skip(f"{folder.name} is published in one form only")
    shutil.copy(folder / request.param, tmp_path / "config.json")
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    return tmp_path


def decoder(folder: Path, dtype: torch.dtype, context: int) -> Decoder:
    checkpoint = open_checkpoint(folder)
    try:
        return load_decoder(checkpoint, dtype, CPU, context)
    finally:
        checkpoint.close()


def test_float64_logits(folder: Path, either_config: Path) -> None:
    golden = load_file(folder / "golden.safetensors")
    model = decoder(either_config, torch.float64, 48)
    result = model.run(golden["input_ids"][0], model.new_cache(48))
    torch.testing.assert_close(result.logits, golden["f64.logits"][0].double(), atol=5e-6, rtol=0)


def test_float32_logits_and_states(folder: Path) -> None:
    golden = load_file(folder / "golden.safetensors")
    model = decoder(folder, torch.float32, 48)
    states = range(model.spec.layers + 1)
    result = model.run(golden["input_ids"][0], model.new_cache(48), states=states)
    torch.testing.assert_close(result.logits, golden["logits"][0], atol=5e-4, rtol=0)
    assert result.hidden is not None
    for k in states:
        torch.testing.assert_close(result.hidden[:, k], golden[f"h.{k}"][0], atol=1e-3, rtol=1e-4)
    final = model.norm(result.hidden[:, -1])
    torch.testing.assert_close(final, golden["h.final"][0], atol=1e-3, rtol=1e-4)


def test_long_context(folder: Path) -> None:
    golden = load_file(folder / "golden.safetensors")
    model = decoder(folder, torch.float32, 150)
    result = model.run(golden["long.input_ids"][0], model.new_cache(150))
    torch.testing.assert_close(result.logits, golden["long.logits"][0], atol=5e-4, rtol=0)


@pytest.mark.parametrize("rows", [1, 3, 8, 40])
def test_pieces_give_what_the_whole_gives(folder: Path, rows: int) -> None:
    golden = load_file(folder / "golden.safetensors")
    ids = golden["input_ids"][0]
    model = decoder(folder, torch.float32, 48)
    cache = model.new_cache(48)
    logits = []
    for at in range(0, len(ids), rows):
        logits.append(model.run(ids[at : at + rows], cache).logits)
        cache.commit(min(at + rows, len(ids)))
    torch.testing.assert_close(torch.cat(logits), golden["logits"][0], atol=5e-4, rtol=0)


def test_rolled_back_rows_leave_no_trace(folder: Path) -> None:
    golden = load_file(folder / "golden.safetensors")
    ids = golden["input_ids"][0]
    model = decoder(folder, torch.float32, 48)
    cache = model.new_cache(48)
    model.run(ids[:20], cache)
    cache.commit(20)
    model.run(torch.zeros(9, dtype=torch.int64), cache)  # rejected drafts: written, never committed
    result = model.run(ids[20:], cache)
    torch.testing.assert_close(result.logits, golden["logits"][0, 20:], atol=5e-4, rtol=0)


def test_greedy_continuation(folder: Path) -> None:
    golden = load_file(folder / "golden.safetensors")
    config = json.loads((folder / "config.json").read_text())
    prompt, expected = golden["greedy.prompt_ids"][0], golden["greedy.new_ids"][0].tolist()
    model = decoder(folder, torch.float32, config["max_position_embeddings"])
    cache = model.new_cache(64)
    token = int(model.run(prompt, cache, last=True).logits[0].argmax())
    got = [token]
    for at in range(len(prompt), len(prompt) + len(expected) - 1):
        cache.commit(at)
        token = int(model.run(torch.tensor([token]), cache).logits[0].argmax())
        got.append(token)
    assert got == expected
