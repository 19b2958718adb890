"""The drafters that come with Outrider, as files; what they are worth on the starter is in `test_real`."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import msgspec
import pytest
from safetensors import safe_open

from outrider.core.drafting import registry
from outrider.core.library import drafter_card

HOME = Path(str(files("outrider.assets") / "drafters"))
FOLDERS = sorted(HOME.iterdir()) if HOME.is_dir() else []
EACH, TOGETHER = 18_000_000, 40_000_000  # bytes


def nbytes(folder: Path) -> int:
    return sum(one.stat().st_size for one in folder.iterdir())


def test_there_are_some_and_they_are_small() -> None:
    assert FOLDERS and sum(map(nbytes, FOLDERS)) <= TOGETHER


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_drafter_has_a_card_and_nothing_that_is_the_targets(folder: Path) -> None:
    card = drafter_card.read(folder)
    assert card is not None and card.measured is not None
    assert folder.name == f"{card.model}-{card.method}" and registry.named(card.method)
    assert card.measured.texts >= 20 and card.measured.tokens_per_pass > 1.2
    assert card.command.startswith(f"outrider train {card.method} ") and card.hours > 0 and card.tokens > 100_000
    assert f"{card.measured.tokens_per_pass:.2f} tokens a pass" in (folder / "README.md").read_text(encoding="utf-8")
    assert msgspec.json.decode((folder / "config.json").read_bytes())["tied_to_target"] is True
    assert nbytes(folder) <= EACH
    (weights,) = folder.glob("*.safetensors")
    with safe_open(weights, "pt") as file:  # pyright: ignore[reportGeneralTypeIssues] - a context manager without types
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 - it is no mapping
    assert not {name for name in kinds if "lm_head" in name or "embed" in name}
    assert {kind for name, kind in kinds.items() if name not in ("d2t", "t2d")} == {"BF16"}
