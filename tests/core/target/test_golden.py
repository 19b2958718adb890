"""Every family against reference logits, states and greedy continuations of tiny golden checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from outrider.core.target.decoder import Decoder
from outrider.core.target.families import READERS
from outrider.core.target.load import load_decoder
from outrider.core.weights.checkpoint import open_checkpoint

GOLDEN = Path(__file__).resolve().parents[4] / "shared" / "data" / "golden"
CPU = torch.device("cpu")
LEFT_OUT = {"mimo_v2_flash", "nemotron_h", "granitemoehybrid"}
NAMES = sorted(p.name for p in GOLDEN.iterdir() if p.is_dir() and p.name not in LEFT_OUT) if GOLDEN.is_dir() else []

pytestmark = pytest.mark.skipif(not GOLDEN.is_dir(), reason="the golden checkpoints are not beside this checkout")


@pytest.fixture(params=NAMES)
def folder(request: pytest.FixtureRequest) -> Path:
    return GOLDEN / request.param


def forms(folder: Path) -> list[str]:
    """Names of the config in each published form that the folder has."""
    return [name for name in ("config.json", "config_hub.json") if (folder / name).exists()]


def decoder(folder: Path, dtype: torch.dtype, context: int) -> Decoder:
    checkpoint = open_checkpoint(folder)
    try:
        return load_decoder(checkpoint, dtype, CPU, context)
    finally:
        checkpoint.close()


def tolerance(folder: Path) -> float:
    return 2e-3 if folder.name.startswith(("qwen3_next", "qwen3_5")) else 5e-4


@pytest.mark.parametrize(("name", "form"), [(name, form) for name in NAMES for form in forms(GOLDEN / name)])
def test_float64_logits(name: str, form: str, tmp_path: Path) -> None:
    folder = GOLDEN / name
    golden = load_file(folder / "golden.safetensors")
    shutil.copy(folder / form, tmp_path / "config.json")
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    model = decoder(tmp_path, torch.float64, 48)
    result = model.run(golden["input_ids"][0], model.new_cache(48))
    torch.testing.assert_close(result.logits, golden["f64.logits"][0].double(), atol=5e-6, rtol=0)


def test_float32_logits_and_states(folder: Path) -> None:
    golden = load_file(folder / "golden.safetensors")
    model = decoder(folder, torch.float32, 48)
    states = range(len(model.spec.layers) + 1)
    result = model.run(golden["input_ids"][0], model.new_cache(48), states=states)
    torch.testing.assert_close(result.logits, golden["logits"][0], atol=tolerance(folder), rtol=0)
    assert result.hidden is not None
    for k in states:
        torch.testing.assert_close(result.hidden[:, k], golden[f"h.{k}"][0], atol=1e-3, rtol=1e-4)
    final = model.norm(result.hidden[:, -1])
    torch.testing.assert_close(final, golden["h.final"][0], atol=1e-3, rtol=1e-4)


def test_long_context(folder: Path) -> None:
    golden = load_file(folder / "golden.safetensors")
    model = decoder(folder, torch.float32, 150)
    result = model.run(golden["long.input_ids"][0], model.new_cache(150))
    torch.testing.assert_close(result.logits, golden["long.logits"][0], atol=tolerance(folder), rtol=0)


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
    torch.testing.assert_close(torch.cat(logits), golden["logits"][0], atol=tolerance(folder), rtol=0)


@pytest.mark.parametrize("accepted", [0, 1, 5])
def test_rejected_drafts_leave_no_trace(folder: Path, accepted: int) -> None:
    """A block of which only a part was right, then the rest of the text."""
    golden = load_file(folder / "golden.safetensors")
    ids = golden["input_ids"][0]
    model = decoder(folder, torch.float32, 60)
    cache = model.new_cache(60)
    model.run(ids[:20], cache)
    cache.commit(20)
    draft = torch.cat((ids[20 : 21 + accepted], (ids[21 + accepted : 29] + 1) % 256))
    model.run(draft, cache)
    cache.commit(21 + accepted)
    result = model.run(ids[21 + accepted :], cache)
    torch.testing.assert_close(result.logits, golden["logits"][0, 21 + accepted :], atol=tolerance(folder), rtol=0)


def test_rewind_three_windows_back(folder: Path) -> None:
    """Far back, past every sliding window and every kept state: the nearest known state, then the text again."""
    golden = load_file(folder / "golden.safetensors")
    ids = golden["long.input_ids"][0]
    model = decoder(folder, torch.float32, 150)
    cache = model.new_cache(150)
    for at in range(0, 150, 30):
        model.run(ids[at : at + 30], cache)
        cache.commit(at + 30)
        cache.keep()
    reached = cache.rewind(95)
    assert reached == (95 if cache.cut else 90)
    result = model.run(ids[reached:], cache)
    torch.testing.assert_close(result.logits, golden["long.logits"][0, reached:], atol=tolerance(folder), rtol=0)
    assert cache.rewind(0) == 0
    again = model.run(ids[:48], cache)
    fresh = model.run(ids[:48], model.new_cache(48))
    torch.testing.assert_close(again.logits, fresh.logits, atol=1e-4, rtol=0)


def test_greedy_continuation(folder: Path) -> None:
    golden = load_file(folder / "golden.safetensors")
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    prompt, expected = golden["greedy.prompt_ids"][0], golden["greedy.new_ids"][0].tolist()
    model = decoder(folder, torch.float32, min(text["max_position_embeddings"], 64))
    cache = model.new_cache(64)
    token = int(model.run(prompt, cache, last=True).logits[0].argmax())
    got = [token]
    for at in range(len(prompt), len(prompt) + len(expected) - 1):
        cache.commit(at)
        token = int(model.run(torch.tensor([token]), cache).logits[0].argmax())
        got.append(token)
    assert got == expected


def test_every_reader_is_tried() -> None:
    types = set()
    for name in NAMES:
        config = json.loads((GOLDEN / name / "config.json").read_text())
        types.add(str(config.get("text_config", config)["model_type"]).removesuffix("_text"))
    assert set(READERS) - types <= {"gemma4_unified"}
