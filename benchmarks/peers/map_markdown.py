"""How many characters of real Markdown the marks can be laid on: `python benchmarks/peers/map_markdown.py FOLDER...`

Walks folders for Markdown files and prints for each with something amiss, and for all of them, how many rendered
characters were mapped to their place in the source, and how many to a wrong one (see tests/support/markdown_places.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from markdown_places import Score, score

MOST = 20_000  # characters of a file that are looked at


def main(folders: list[str]) -> int:
    """Returns 1 if any character was mapped to a wrong place."""
    files = [
        path for folder in folders for path in sorted(Path(folder).rglob("*")) if path.suffix in (".md", ".markdown")
    ]
    total, read = Score(), 0
    for path in files:
        try:
            text = path.read_text("utf-8")[:MOST]
        except (OSError, UnicodeDecodeError):
            continue
        found = score(text)
        read += 1
        if found.wrong or found.lost:
            print(
                f"{path}: {found.shown} shown, {found.mapped} mapped, {found.wrong} wrong",
                *found.lost[:3],
                sep="\n    ",
            )
        total += found
    share = 100 * total.mapped / max(1, total.shown)
    print(
        f"{read} files, {total.shown} characters: {share:.3f}% mapped, {total.wrong} wrong, {len(total.lost)} texts given up"
    )
    print(f"{total.replaced} letters were checked by their own sign")
    return int(total.wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
