"""Marks of all modes, the gutter, chances in the store, and the same on the screen."""

from __future__ import annotations

from typing import Any

import pytest
from chat_support import Ride, answer, step, underlined
from rich.style import Style as RichStyle
from textual.color import Color
from textual.style import Style

from outrider.app.chat import gutter, legend
from outrider.app.chat.compat import MarkedText, Settled
from outrider.app.chat.marks import ACCEPTED, CORRECTION, LOW, LOWEST, PASS_A, PASS_B, UNKNOWN, Layers, Marks, tenth
from outrider.app.chat.palette import CONTRAST as LEAST
from outrider.app.chat.palette import Ground, Palette, contrast, tints
from outrider.app.chat.reply import ReplyView
from outrider.app.chat.talk import Reply
from outrider.app.chat.themes import CONTRAST, DARK, LIGHT
from outrider.app.chat.wrapped import line_at, wrapped
from outrider.app.store import chances
from outrider.app.store.records import Node, Settings
from outrider.app.store.replies import Growing, reply_of
from outrider.core.base.protocol import Kind, Step, Token


def layers_of(*passes: list[tuple[str, Kind, float | None]]) -> Layers:
    """A text as its passes brought it: texts, kinds, probabilities."""
    layers = Layers()
    for one in passes:
        for text, kind, p in one:
            layers.add(kind, len(text), tenth(p))
        layers.end_pass()
    return layers


TEXT = layers_of(
    [("One", "P", 0.9)],
    [(" two", "A", 0.5), (" three", "A", 0.49), (" four", "C", 0.05)],
    [("", "P", None)],
    [(" five", "B", None)],
)


def shown(mode: Marks, start: int = 0, end: int = 99) -> list[tuple[int, int, str]]:
    """What is marked of `TEXT`."""
    return [(run.start, run.end, run.kind) for run in TEXT.marks(mode, start, end)]


def test_each_mode_marks_what_it_says() -> None:
    assert shown(Marks.ACCEPTED) == [(3, 13, ACCEPTED)]
    assert shown(Marks.CORRECTIONS) == [(13, 18, CORRECTION)]
    assert shown(Marks.PASSES) == [(0, 3, PASS_A), (3, 18, PASS_B), (18, 23, PASS_A)]
    assert shown(Marks.CONFIDENCE) == [(7, 13, LOW), (13, 18, LOWEST)]
    assert shown(Marks.OFF) == []
    assert shown(Marks.ACCEPTED, 5, 9) == [(5, 9, ACCEPTED)]
    assert TEXT.knows_chances and TEXT.accepted == 10 / 23


def test_cut_and_replaced_texts_keep_their_layers_in_step() -> None:
    layers = layers_of([("abc", "P", 0.3)], [("def", "A", None)])
    layers.cut(4)
    assert [len(runs) for runs in (layers.kinds, layers.passes, layers.chances)] == [4, 4, 4]
    layers.clear()
    layers.add("P", 2)
    assert [run.kind for run in layers.passes] == [0] and not layers.knows_chances


def test_tenths() -> None:
    assert [tenth(p) for p in (None, 0.0, 0.099, 0.5, 0.9999, 1.0)] == [UNKNOWN, 0, 0, 5, 9, 9]


def test_chances_and_passes_are_kept() -> None:
    live = Growing(Node(id="n", role="assistant", text=""), Settings())
    thinks = [Token(1, "Hm.", "P", 0.7, True), Token(2, "", "P", None, True)]
    says = [Token(3, "x" * 30, "A", 0.31), Token(4, "y", "C", 0.02), Token(5, "", "B", 0.99), Token(6, "z", "P")]
    for seq, brought in enumerate(([thinks[0]], [thinks[1], says[0]], [], says[1:3], says[3:])):
        live.take(told(seq, brought))
    node = live.row()
    assert node.answer is not None and node.answer.chances == "3be|0b|-b/7d"
    back = reply_of(node)
    for mode in Marks:
        for ours, theirs in ((live.reply.answer, back.answer), (live.reply.thought, back.thought)):
            assert list(ours.layers.marks(mode, 0, 99)) == list(theirs.layers.marks(mode, 0, 99)), mode
    node.answer.chances = ""  # as a store of before has it
    old = reply_of(node)
    assert not old.answer.layers.knows_chances
    passes = [list(strand.layers.passes) for strand in (live.reply.answer, old.answer, live.reply.thought, old.thought)]
    assert passes[0] == passes[1] and passes[2] == passes[3]


def test_what_the_user_began_and_what_was_cut_stay_in_step() -> None:
    reply = Reply()
    reply.begin_with("Well, ")
    reply.take(told(0, [Token(1, "yes", "P", 0.2)]))
    reply.answer.cut(8)
    reply.take(told(1, [Token(1, "ah", "A", 0.9)]))
    back = Layers()
    back.kinds = reply.answer.runs
    chances.lay(back, Layers(), chances.write(reply.answer.layers, Layers()))
    for mode in Marks:
        assert list(back.marks(mode, 0, 99)) == list(reply.answer.layers.marks(mode, 0, 99)), mode


def told(seq: int, tokens: list[Token]) -> Step:
    """One pass."""
    zero = dict.fromkeys(("t", "draft_ms", "verify_ms", "host_ms"), 0.0)
    return Step(request=1, seq=seq, drafter="none", proposed=0, accepted=0, tokens=tokens, **zero)


@pytest.mark.parametrize("text", ["9", "9d", "ab/", "9d0/", "9d 0b/", "9d/0b/"])
def test_what_are_no_chances_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="chances"):
        chances.lay(Layers(), Layers(), text)


# ---------------------------------------------------------------------------------------------------- looks


@pytest.mark.parametrize("theme", [DARK, LIGHT, CONTRAST])
@pytest.mark.parametrize("colors", ["truecolor", "256"])
def test_every_tint_leaves_text_readable(theme: Any, colors: str) -> None:
    surface, text = Color.parse(theme.background), Color.parse(theme.foreground)
    made = tints(Ground(theme.dark, surface, text, colors), {})
    assert set(made) == {ACCEPTED, CORRECTION, PASS_A, LOWEST}
    assert all(contrast(text, surface + tint) >= LEAST for tint in made.values())
    assert made[ACCEPTED].rgb != made[CORRECTION].rgb


def test_themes_may_choose_and_what_cannot_be_read_is_not_taken() -> None:
    ground = Ground(True, Color.parse("#101010"), Color.parse("#e0e0e0"), "truecolor")
    own = {"spec-accepted": "#800080", "spec-correction": "white", "spec-pass-b": "#00800033", "spec-low": "no colour"}
    made = tints(ground, own)
    assert made[ACCEPTED].rgb == (128, 0, 128) and 0 < made[ACCEPTED].a < 1
    assert (
        made[CORRECTION] == tints(ground, {})[CORRECTION]
        or contrast(ground.text, ground.surface + made[CORRECTION]) >= LEAST
    )
    assert PASS_B in made and made[LOWEST] == tints(ground, {})[LOWEST]
    assert tints(Ground(True, ground.surface, ground.text, "standard"), own) == {}


def test_signs_where_there_are_no_colours() -> None:
    palette = Palette()
    looks = {name: palette.style(name) or Style() for name in (ACCEPTED, CORRECTION, PASS_A, LOW, LOWEST)}
    assert looks[ACCEPTED].underline and looks[PASS_A].underline and looks[CORRECTION].bold
    assert looks[LOW].underline2 and looks[LOWEST].underline2 and looks[LOWEST].bold
    assert all(style.background is None for style in looks.values()) and palette.plain(PASS_B)
    assert [legend.look(palette, name) for name in (ACCEPTED, CORRECTION)] == ["underlined", "bold"]
    palette.adapt(Color.parse("#56B4E9").with_alpha(0.14), {CORRECTION: Color.parse("#E69F00").with_alpha(0.14)})
    assert [legend.look(palette, name) for name in (ACCEPTED, CORRECTION)] == ["tinted", "bold and tinted"]


def test_words_for_a_switch() -> None:
    palette = Palette()
    say = lambda mode, layers: legend.flash(mode, palette, layers, "/marks corrections")  # noqa: E731
    assert "underlined: guessed by a drafter" in say(Marks.ACCEPTED, TEXT)
    most = layers_of([("nearly all of it", "A", None), ("!", "C", None)])
    assert "94% of the last reply; /marks corrections shows" in say(Marks.ACCEPTED, most)
    assert "not known of the last reply" in say(Marks.CONFIDENCE, most)
    assert "less than an even chance" in say(Marks.CONFIDENCE, TEXT)
    assert say(Marks.OFF, TEXT) == "Marks off"
    assert legend.has_marks(Marks.ACCEPTED, most) and not legend.has_marks(Marks.CONFIDENCE, most)
    assert "corrections show the rest (F4" in legend.line(Marks.ACCEPTED, palette, most, "F4")


# ---------------------------------------------------------------------------------------------------- gutter


def test_gutter_signs() -> None:
    assert [gutter.glyph(*share) for share in ((0, 0), (0, 9), (1, 99), (1, 2), (99, 100), (7, 7))] == list("  ▁▄██")


def test_wrapped_as_the_screen_does() -> None:
    assert wrapped("one two three", 8) == [(0, 8), (8, 13)]
    assert wrapped("a\n\nbcdefgh", 3) == [(0, 1), (2, 2), (3, 6), (6, 9), (9, 10)]
    assert wrapped("a\tb c", 9) == [(0, 4), (4, 5)] and wrapped("abc def", 0) == [(0, 7)]
    assert [line_at([(0, 8), (8, 13)], place) for place in (0, 7, 8, 12, 13)] == [0, 0, 1, 1, 1]


def tokens(text: str) -> list[tuple[str, str]]:
    """Words of a text as accepted and corrected tokens in a pattern that differs from line to line."""
    words = text.split(" ")
    return [(word + " ", "A" if (n * n) % 7 in (1, 2) else "P") for n, word in enumerate(words)]


def cells(chat: Ride, y: int) -> list[tuple[str, RichStyle | None]]:
    """The characters of a line of the screen with their styles."""
    strip = chat.app.screen._compositor.render_strips()[y]
    return [(sign, part.style) for part in strip for sign in part.text]


def column(chat: Ride, view: ReplyView) -> list[tuple[str, RichStyle | None]]:
    """The last column of a reply, as far as it is seen."""
    seen = range(max(0, view.region.y), min(view.region.bottom, chat.app.size.height - 3))
    return [cells(chat, y)[view.region.right - 1] for y in seen]


async def test_modes_and_gutter_on_the_screen(ride: Any) -> None:
    prose = " ".join(f"{n}word{n}" for n in range(90))
    text = f"# A title here\n\n{prose}\n\n> quoted {prose[:200]}\n\n- item {prose[:150]}\n"
    lines = [step(n, 0.0, tokens(text)[4 * n : 4 * n + 4]) for n in range(len(text.split(" ")) // 4 + 1)]
    for n, line in enumerate(lines):
        for token in line["frame"]["tokens"]:
            token["p"] = 0.3 if n % 3 == 0 else 0.9
    async with ride([*lines, answer("x")[-1]], answer("Second.\n", "P"), size=(90, 40)) as chat:
        await chat.ask("go")
        (view,) = chat.chat.query(ReplyView)
        ground = (view.background_colors[1] + chat.app.palette.ground).rgb
        right, checked = view.region.right - 1, 0
        for y in range(view.region.y, view.region.bottom - 2):
            line = cells(chat, y)
            letters = [(sign, style) for sign, style in line[view.region.x : right] if sign.isalnum()]
            early = [sign for sign, style in letters if style and style.bgcolor and style.bgcolor.triplet == ground]
            count = sum(sign in "#>-•" for sign, _ in letters)
            assert line[right][0] == gutter.glyph(len(early), len(letters) - count), (y, line[right])
            checked += bool(letters)
        assert checked > 12 and "guessed by a drafter" in chat.screen() and "F4: other marks" in chat.screen()
        chat.app.palette.adapt(None)
        parsed = [id(block) for block in chat.chat.query("_Paragraph")]
        for mode in ("passes", "corrections", "confidence", "off"):
            await chat.pilot.press("f4")
            await chat.pilot.pause()
            assert f"Marks {mode}" in chat.status
            assert chat.app.palette.mode is Marks(mode)
        assert not "".join(underlined(one) for one in chat.chat.query("_Paragraph")).replace("/", "")
        await chat.type("/marks confidence")
        await chat.pilot.pause()
        assert chat.session.wants_chances
        first = next(iter(chat.chat.query("_H1")))
        assert doubled(first) == "A title here/"
        assert [id(block) for block in chat.chat.query("_Paragraph")] == parsed  # nothing was built anew
        await chat.type("/marks wrong")
        await chat.until(lambda: "There are no marks wrong." in chat.screen())
        await chat.type("/marks passes")
        await chat.ask("more")
        assert len(chat.chat.query(".legend")) == 1  # once in a chat
        blocks = lambda: set("▁▂▃▄▅▆▇█") & {sign for sign, _ in column(chat, view)}  # noqa: E731
        chat.chat.transcript.scroll_home(animate=False)
        await chat.until(blocks)
        chat.chat.sight.show_gutter(False)
        await chat.until(lambda: not blocks())
        chat.chat.sight.show_gutter(True)
        await chat.until(blocks)
        await chat.pilot.resize_terminal(78, 40)
        await chat.until(lambda: not blocks())
        await chat.pilot.press("alt+up", "v")
        await chat.until(lambda: chat.chat.query(ReplyView).last().raw)
        tail = chat.chat.query(ReplyView).last().query_one(MarkedText)
        await chat.until(lambda: tail.display and not chat.chat.query(ReplyView).last().query(Settled))
        await chat.pilot.press("v")
        await chat.until(lambda: chat.chat.query(ReplyView).last().query(Settled) and not tail.display)


def doubled(widget: Any) -> str:
    """The doubly underlined characters of a widget."""
    found = ""
    for y in range(widget.size.height):
        found += "".join(part.text for part in widget.render_line(y) if part.style and part.style.underline2) + "/"
    return found
