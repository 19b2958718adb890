"""Every family against reference logits, states and greedy continuations of tiny golden checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path

import golden
import golden_files
import pytest
import torch
from golden import FOLDER, NAMES, decoder, tolerance

from outrider.core.model.cache import layout
from outrider.core.model.families import READERS
from outrider.core.model.kernels import ops


def test_the_random_weights_are_those_of_the_reference() -> None:
    """Where this fails, torch draws other numbers than on x86-64, and tests against these goldens may fail for that alone."""
    assert [name for name, same in golden_files.drawn_anew().items() if not same] == []


@pytest.mark.parametrize("error", [0.1, 0.9])
def test_a_sketch_sees_every_row_and_every_number(error: float) -> None:
    rows = torch.randn(5, 256, generator=torch.Generator().manual_seed(1))
    want = golden.sketch(rows)
    golden.assert_close(rows, want, atol=1e-3)
    for row, column in ((0, 0), (4, 255), (2, 100)):
        wrong = rows.clone()
        wrong[row, column] += error * 16e-3  # 16: the root of the columns
        if error < 0.5:
            golden.assert_close(wrong, want, atol=1e-3)
        else:
            with pytest.raises(AssertionError, match="not close"):
                golden.assert_close(wrong, want, atol=1e-3)
    with pytest.raises(AssertionError, match="not close"):
        golden.assert_close(
            rows + 1e-3 * torch.randn(5, 256, generator=torch.Generator().manual_seed(2)), want, atol=1e-3
        )
    with pytest.raises(AssertionError, match="not close"):
        golden.assert_close(rows * float("nan"), want, atol=1e-3)
    with pytest.raises(AssertionError, match="no sketch"):
        golden.assert_close(rows, rows, atol=1e-3)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def forms(name: str) -> list[str]:
    """Names of the config in each published form that the folder has."""
    return [form for form in ("config.json", "config_hub.json") if (FOLDER / name / form).exists()]


@pytest.mark.parametrize(("name", "form"), [(name, form) for name in NAMES for form in forms(name)])
def test_float64_logits(name: str, form: str, tmp_path: Path) -> None:
    folder, known = FOLDER / name, golden.tensors(name)
    shutil.copy(folder / form, tmp_path / "config.json")
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    model = decoder(tmp_path, torch.float64, 48)
    result = model.run(known["input_ids"][0], model.new_cache(48))
    golden.assert_close(result.logits, known["f64.logits"][0], atol=5e-6)


def test_float32_logits_and_states(name: str) -> None:
    known = golden.tensors(name)
    model = decoder(FOLDER / name, torch.float32, 48)
    states = range(len(model.spec.layers) + 1)
    result = model.run(known["input_ids"][0], model.new_cache(48), states=states)
    golden.assert_close(result.logits, known["logits"][0], atol=tolerance(name))
    assert result.hidden is not None
    for k in states:
        golden.assert_close(result.hidden[:, k], known[f"h.{k}"][0], atol=1e-3)
    final = model.norm(result.hidden[:, -1])
    golden.assert_close(final, known["h.final"][0], atol=1e-3)


@pytest.mark.parametrize("name", sorted({"gemma3", "glm4", "gpt_oss", "llama", "qwen3_next"} & set(NAMES)))
def test_torchs_own_steps(name: str) -> None:
    """What a machine without a C compiler does."""
    with ops.only("cpu", None):
        test_float32_logits_and_states(name)
        test_pieces_give_what_the_whole_gives(name, 3)


def test_long_context(name: str) -> None:
    known = golden.tensors(name)
    model = decoder(FOLDER / name, torch.float32, 150)
    result = model.run(known["long.input_ids"][0], model.new_cache(150))
    golden.assert_close(result.logits, known["long.logits"][0], atol=tolerance(name))


@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.thorough), 3, 8, 40])
def test_pieces_give_what_the_whole_gives(name: str, rows: int) -> None:
    known = golden.tensors(name)
    ids = known["input_ids"][0]
    model = decoder(FOLDER / name, torch.float32, 48)
    cache = model.new_cache(48)
    logits = []
    for at in range(0, len(ids), rows):
        logits.append(model.run(ids[at : at + rows], cache).logits)
        cache.commit(min(at + rows, len(ids)))
    golden.assert_close(torch.cat(logits), known["logits"][0], atol=tolerance(name))


@pytest.mark.parametrize("accepted", [0, 1, 5])
def test_rejected_drafts_leave_no_trace(name: str, accepted: int) -> None:
    """A block of which only a part was right, then the rest of the text."""
    known = golden.tensors(name)
    ids = known["input_ids"][0]
    model = decoder(FOLDER / name, torch.float32, 60)
    cache = model.new_cache(60)
    model.run(ids[:20], cache)
    cache.commit(20)
    draft = torch.cat((ids[20 : 21 + accepted], (ids[21 + accepted : 29] + 1) % 256))
    model.run(draft, cache)
    cache.commit(21 + accepted)
    result = model.run(ids[21 + accepted :], cache)
    golden.assert_close(result.logits, known["logits"][0, 21 + accepted :], atol=tolerance(name))


def test_rewind_three_windows_back(name: str) -> None:
    """Far back, past every sliding window and every kept state: the nearest known state, then the text again."""
    known = golden.tensors(name)
    ids = known["long.input_ids"][0]
    model = decoder(FOLDER / name, torch.float32, 150)
    cache = model.new_cache(150)
    for at in range(0, 150, 30):
        model.run(ids[at : at + 30], cache)
        cache.commit(at + 30)
        cache.snapshot()
    reached = cache.rewind(95)
    assert reached == (95 if cache.cut else 90)
    result = model.run(ids[reached:], cache)
    golden.assert_close(result.logits, known["long.logits"][0, reached:], atol=tolerance(name))
    assert cache.rewind(0) == 0
    again = model.run(ids[:48], cache)
    fresh = model.run(ids[:48], model.new_cache(48))
    torch.testing.assert_close(again.logits, fresh.logits, atol=1e-4, rtol=0)


def test_greedy_continuation(name: str) -> None:
    known = golden.tensors(name)
    context = min(golden.config(name)["max_position_embeddings"], 64)
    prompt, expected = known["greedy.prompt_ids"][0], known["greedy.new_ids"][0].tolist()
    model = decoder(FOLDER / name, torch.float32, context)
    cache = model.new_cache(64)
    token = int(model.run(prompt, cache, last=True).logits[0].argmax())
    got = [token]
    for at in range(len(prompt), len(prompt) + len(expected) - 1):
        cache.commit(at)
        token = int(model.run(torch.tensor([token]), cache).logits[0].argmax())
        got.append(token)
    assert got == expected


def test_every_reader_is_tried() -> None:
    types = {str(golden.config(name)["model_type"]).removesuffix("_text") for name in NAMES}
    assert set(READERS) - types <= {"gemma4_unified", "mimo"}


@pytest.mark.parametrize("family", ["gpt_oss", "deepseek_v3", "mimo_v2_flash"])
def test_scores_of_many_rows_are_computed_in_slices(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention that writes its scores down may not need memory by the square of the context."""
    model = decoder(FOLDER / family, torch.float64, 64)
    ids = golden.tensors(family)["input_ids"][0]
    whole = model.run(ids, model.new_cache(64)).logits
    monkeypatch.setattr(layout, "SCORES", 2000)  # a few rows at a time
    torch.testing.assert_close(model.run(ids, model.new_cache(64)).logits, whole, atol=1e-9, rtol=0)
