"""The short table of a run, from its JSON file: python report.py FILE. Exit code 1 if a check failed or was not reached."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WIDE = 150  # characters of a line


def flat(figures: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Names and values, nested ones with the names above; tables of numbers in one line."""
    for key, value in figures.items():
        if isinstance(value, dict) and value and all(isinstance(each, int | float) for each in value.values()):
            yield before + key, "  ".join(f"{name}: {each}" for name, each in value.items())
        elif isinstance(value, dict):
            yield from flat(value, f"{before}{key} ")
        elif key not in ("ok", "seconds", "error"):
            yield before + key, str(value)


def lines(found: dict[str, Any]) -> Iterator[str]:
    """A head line for each check, its figures below."""
    for name in found["planned"]:
        result = found["checks"].get(name)
        if result is None:
            yield f"----  {name}: not reached"
            continue
        yield f"{'ok  ' if result['ok'] else 'FAIL'}  {name} ({result['seconds']:.1f} s)"
        if not result["ok"]:
            yield f"      {result['error']}"[: 3 * WIDE]
        line = "     "
        for key, text in flat(result):
            if len(line) + len(key) + len(text) > WIDE and line.strip():
                yield line
                line = "     "
            line += f" {key} {text};"
        if line.strip():
            yield line


def main(path: Path) -> int:
    """Print the table."""
    if not path.exists():
        print("nothing was measured")
        return 1
    found = json.loads(path.read_text())
    print("-" * WIDE)
    for line in lines(found):
        print(line)
    good = [name for name in found["planned"] if found["checks"].get(name, {}).get("ok")]
    print(f"{len(good)} of {len(found['planned'])} checks are fine")
    return 0 if len(good) == len(found["planned"]) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
