"""Tables in one widget: how columns share the room, and which part of which cell stands where."""

from __future__ import annotations

from textual.content import Content

from outrider.app.chat.sheet import Part, Sheet, fitted


def sheet(*rows: str, aligned: str = "") -> Sheet:
    """A table of these rows, cells parted by bars."""
    cells = [[Content(cell) for cell in row.split("|")] for row in rows]
    return Sheet(cells, aligned.split() or ["left"] * len(cells[0]))


def test_columns_take_what_they_need_or_share_what_there_is() -> None:
    assert fitted([3, 5], 20) == [3, 5]
    assert fitted([3, 50, 9], 30) == [3, 18, 9]
    assert fitted([30, 3, 50], 23) == [10, 3, 10]
    assert fitted([9, 9, 9], 2) == [1, 1, 1]


def test_cells_stand_in_columns() -> None:
    table = sheet("n|word", "1|漢字", "22|e\u0301x", aligned="right left")
    assert table.text(40).plain.split("\n") == ["  n │ word", " ───┼─────", "  1 │ 漢字", " 22 │ e\u0301x"]


def test_long_cells_are_wrapped_between_lines_and_every_part_is_known() -> None:
    table = sheet("a|b", "x|some long words", "y|z")
    assert table.text(14).plain.split("\n") == [
        " a │ b",
        " ──┼──────────",
        " x │ some long",
        "   │ words",
        " ──┼──────────",
        " y │ z",
    ]
    lines = table.lines(14)
    assert lines[1] is None and lines[4] is None
    assert lines[2] == [Part(2, 0, 1), Part(3, 0, 10)] and lines[3] == [None, Part(3, 10, 15)]
    assert table.get_height({}, 14) == 6 and table.get_height({}, 40) == 4


def test_no_room_at_all() -> None:
    table = sheet("a|b|c|d", "1|2|3|4")
    assert all(len(line) <= 5 for line in table.text(5).plain.split("\n"))
    assert table.get_height({}, 5) == table.text(5).plain.count("\n") + 1
    assert table.render_strips(0, None, None, None) == []  # type: ignore[arg-type]


def test_cells_keep_their_styles_and_take_one_line_each() -> None:
    table = Sheet([[Content("h")], [Content.styled("a\tb\nc", "bold")]], ["left"])
    text = table.text(20)
    assert text.plain.endswith("a b c")
    assert [text.plain[span.start : span.end] for span in text.spans if span.style == "bold"] == ["a b c"]
