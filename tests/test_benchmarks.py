"""The counters of `benchmarks/` on checkouts whose figures are known."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
CORE, DRAFTERS = "core/outrider/core", "plugins/outrider/drafters"
FILES = {
    f"{CORE}/__init__.py": "",
    f"{CORE}/engine.py": "from .model import load\nfrom outrider.core.text import words\n",
    f"{CORE}/model/__init__.py": "",
    f"{CORE}/model/load.py": "def load():\n    from .blocks import Block\n    return _once(Block), _twice(), _twice()\n"
    "def _once(block): return _handed\ndef _twice(): ...\ndef _handed(): ...\n",
    f"{CORE}/model/blocks.py": "from typing import TYPE_CHECKING\n"
    "if TYPE_CHECKING:\n    from .load import load\nclass Block: ...\n",
    f"{CORE}/model/llama/family.py": "from ..blocks import Block\n",
    f"{CORE}/text/words.py": "def words():\n    import outrider.core.model.blocks\n",
    f"{CORE}/model/reader.py": "from outrider.core.text.words import words\nfrom .llama import family\n",
    f"{CORE}/drafting/__init__.py": '"""Front."""\nfrom ._contract import Draft, Target\n'
    'from ._state import State as State\n__all__ = ["Draft"]\n_LAZY = {"Sampler": "._sampler"}\n'
    "def __getattr__(name): ...\n",
    f"{CORE}/drafting/_sampler.py": "class Sampler: ...\n",
    f"{CORE}/drafting/_contract.py": "class Draft: ...\nclass Target: ...\n",
    f"{CORE}/drafting/_state.py": "from ._contract import Draft\nclass State: ...\n",
    f"{CORE}/train/recipe.py": "class Recipe: ...\n",
    f"{DRAFTERS}/free.py": "from outrider.core.drafting import Draft, Sampler, Target\n",
    f"{DRAFTERS}/neural/__init__.py": "from outrider.core.drafting import Draft, State\n"
    "def train():\n    from .training import Trainee\n",
    f"{DRAFTERS}/neural/network.py": "from outrider.core.model.blocks import Block\n",
    f"{DRAFTERS}/neural/draft.py": "from .network import Network\n",
    f"{DRAFTERS}/neural/training.py": "from outrider.core.train.recipe import Recipe\nfrom . import losses\n",
    f"{DRAFTERS}/neural/losses.py": "from outrider.core.text.words import words\n",
    "app/outrider/app/long.py": "def long():\n" + "    pass\n" * 500,
}


def script(name: str) -> Any:
    """A module of benchmarks."""
    if str(ROOT / "benchmarks") not in sys.path:
        sys.path.append(str(ROOT / "benchmarks"))
    return importlib.import_module(name)


@pytest.fixture
def house(tmp_path: Path) -> Any:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return script("house").House(tmp_path)


def test_cycles_count_lazy_and_type_only_imports(house: Any) -> None:
    graph, cycles = house.graph("core", "plugins"), script("house").cycles
    assert cycles(graph) == [["outrider.core.model.blocks", "outrider.core.model.load"]]
    assert cycles(house.folders(graph, strict=False)) == [[f"{CORE}/model", f"{CORE}/text"]]
    assert cycles(house.folders(graph, strict=True)) == [[f"{CORE}/model", f"{CORE}/model/llama", f"{CORE}/text"]]


def test_a_long_chain_of_imports_is_no_cycle_until_it_is_closed() -> None:
    cycles, chain = script("house").cycles, {str(n): {str(n + 1)} for n in range(5000)} | {"5000": set[str]()}
    assert cycles(chain) == []
    assert [len(group) for group in cycles(chain | {"5000": {"0"}})] == [5001]


def test_private_functions_and_their_calls(house: Any) -> None:
    assert script("house").private_functions(house.of("core")) == (3, [f"{CORE}/model/load.py _once"])


def test_a_front_counts_as_the_modules_behind_it(house: Any) -> None:
    assert script("house").plugins(house) == {
        "free": ["outrider.core.drafting._contract", "outrider.core.drafting._sampler"],
        "neural": ["outrider.core.drafting._contract", "outrider.core.drafting._state"],
    }
    assert script("house").drafting_half(house, "outrider.drafters.neural") == {"outrider.drafters.neural"}
    draft = house.modules["outrider.drafters.neural"]
    draft.imports.append(("outrider.drafters.neural.draft", ()))
    assert "outrider.core.model.blocks" in script("house").plugins(house)["neural"]


def test_sizes(house: Any) -> None:
    figures, names = script("house").figures(house.root, calls=False)
    assert (figures["files over 500 lines"], figures["functions over 60 lines"]) == (1, 1)
    assert names["too long"] == ["app/outrider/app/long.py: 501", "app/outrider/app/long.py:1 long: 501"]
    assert figures["room core/drafting: files / lines"] == "4 / 11"
    assert figures["value types that hold a draft"] == 1


def test_an_interval_holds_the_median_in_95_percent_of_samples() -> None:
    interval = script("old_and_new").interval
    assert interval(range(10)) == (1, 8)  # misses it in 2 · 11 / 1024
    assert interval(range(5)) == (-math.inf, math.inf)  # even the extremes miss it in 1 / 16
    assert interval(range(6)) == (0, 5)
