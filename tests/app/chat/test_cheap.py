"""What makes frames and the start cheap shows the same as what it takes the place of."""

from __future__ import annotations

from typing import Any

import pytest
from chat_support import answer
from textual.css.model import RuleSet
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from outrider.app.chat.bare import Bare
from outrider.app.chat.flow import Flow
from outrider.app.chat.reply import ReplyView
from outrider.app.chat.styling import Styling

TEXT = "# Title\n\n- one\n- two\n\n1. three\n\nLast.\n"


def cells(strips: list[Strip]) -> list[list[tuple[str, Any, Any]]]:
    """Letters and colours."""
    made = []
    for strip in strips:
        line: list[tuple[str, Any, Any]] = []
        for text, style, _ in strip:
            look = (style.color, style.bgcolor) if style else (None, None)
            line += [(char, look[0] if char.strip() else None, look[1]) for char in text]
        made.append(line)
    return made


@pytest.mark.parametrize(
    "environment", [{}, {"NO_COLOR": "1"}, {"theme": "ansi-dark"}], ids=["colours", "none", "ansi"]
)
async def test_bare_containers_look_like_any_other(
    ride: Any, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    if "NO_COLOR" in environment:
        monkeypatch.setenv("NO_COLOR", "1")
    async with ride(answer(TEXT, "PA"), private=True) as chat:
        chat.app.theme = environment.get("theme", chat.app.theme)
        await chat.ask("go")
        bare = [widget for widget in chat.chat.query(Widget) if isinstance(widget, Bare) and widget.region]
        assert {type(widget).__name__ for widget in bare} >= {
            "Transcript",
            "ReplyView",
            "Flow",
            "Settled",
            "_BulletList",
        }
        for widget in bare:
            crop = Region(0, 0, widget.outer_size.width, min(9, widget.outer_size.height))
            own = Bare.render_lines(widget, crop)
            widget._styles_cache.clear()
            assert cells(own) == cells(Widget.render_lines(widget, crop)), type(widget)
        view = chat.chat.query_one(ReplyView)
        view.focus()
        await chat.pilot.pause(0)
        assert any("▌" in strip.text or "▋" in strip.text for strip in view.render_lines(Region(0, 0, 5, 3)))
        assert chat.chat.query_one(Flow).render_lines(Region(0, 0, 5, 2))[0].text == " " * 5


def test_styles_are_parsed_once_for_each_set_of_colours() -> None:
    def rules(sheet: Styling) -> list[RuleSet]:
        return list(sheet.rules)

    red = {"primary": "#ff0000", "a-name-of-this-test": "1"}
    sheet = Styling(red)
    sheet.add_source("Static { color: $primary; }", read_from=("test", ""))
    first = rules(sheet)
    sheet.set_variables(dict(red))
    sheet.reparse()
    assert rules(sheet)[0] is first[0]
    sheet.set_variables(red | {"primary": "#00ff00"})
    sheet.reparse()
    (other,) = rules(sheet)
    assert other.styles.color.hex == "#00FF00" and first[0].styles.color.hex == "#FF0000"
    sheet.set_variables(red)
    sheet.reparse()
    assert rules(sheet)[0] is first[0]
    again = Styling(red)
    again.add_source("Static { color: $primary; }", read_from=("test", ""))
    assert rules(again)[0] is first[0]
