"""Constraints for the lowest versions that pyproject.toml claims: `python packaging/bounds.py > constraints.txt`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def lowest(requirements: Iterable[str]) -> list[str]:
    """`name==version` for each `name>=version`."""
    found = (re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*>=\s*([0-9.]+)", one) for one in requirements)
    return [f"{one[1]}=={one[2]}" for one in found if one]


if __name__ == "__main__":
    print("\n".join(lowest(tomllib.loads(PROJECT.read_text("utf-8"))["project"]["dependencies"])))
