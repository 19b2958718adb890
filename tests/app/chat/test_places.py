"""Exactness of marks: the place of every rendered character, over documents that cover what Markdown has."""

from __future__ import annotations

from pathlib import Path

import pytest
from markdown_places import Score, pieces_of, score

DOCUMENTS = sorted((Path(__file__).parents[2] / "data" / "markdown").glob("*.md"))


LONG = {
    "fence": "```py\n" + "".join(f"    name{n} = [{n}, 'a\tb']  # *no*\n" for n in range(100)) + "```\n",
    "table": "| name | other |\n|---|---|\n" + "".join(f"| *cell* {n} | a \\| `b` {n} |\n" for n in range(50)),
    "list": "".join(f"1. item **{n}** of\n   two lines\n" for n in range(60)),
    "paragraph": "Some *words* and `code` go on & on. " * 150 + "\n",
    "lines": "A line of **verse**\n" * 200,
}


@pytest.mark.parametrize("shape", LONG)
def test_parts_of_long_blocks_are_mapped_too(shape: str) -> None:
    found = score(LONG[shape])
    assert len(pieces_of(LONG[shape])) > (shape != "list")
    assert found.wrong == 0 and found.mapped == found.shown > 700


def test_no_character_is_mapped_to_a_wrong_place_and_nearly_all_are_mapped() -> None:
    total = Score()
    for path in DOCUMENTS:
        found = score(path.read_text("utf-8"))
        print(f"{path.stem:20} {found.shown:6} shown {found.mapped:6} mapped {found.wrong:3} wrong", *found.lost)
        total += found
    share = total.mapped / total.shown
    print(f"{len(DOCUMENTS)} documents, {total.shown} characters: {100 * share:.2f}% mapped, {total.wrong} wrong")
    assert len(DOCUMENTS) > 30 and total.replaced > 0.5 * total.shown
    assert total.wrong == 0
    assert share >= 0.999
