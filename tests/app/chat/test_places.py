"""Exactness of marks: the place of every rendered character, over documents that cover what Markdown has."""

from __future__ import annotations

from pathlib import Path

from markdown_places import Score, score

DOCUMENTS = sorted((Path(__file__).parents[2] / "data" / "markdown").glob("*.md"))


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
