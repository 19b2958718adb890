"""The column of messages, and the small widgets in it that are not replies."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from outrider.app.chat.bare import Bare
from outrider.app.chat.card import Card as Card
from outrider.app.chat.clean import harmless
from outrider.app.chat.input.attach import label
from outrider.app.chat.palette import Palette
from outrider.app.chat.talk import Reply, Turn

if TYPE_CHECKING:
    from outrider.app.chat.reply import ReplyView

_SHOWN, _SHOWN_LINES = 2000, 24  # characters and lines of a message of the user
_PAGE = 20  # turns of an opened chat that are shown at once
_NEAR = 2  # heights of the window within which replies are kept rendered
COLUMN = 100  # cells of text at most
Keys = tuple[tuple[str, str], ...]
_EXAMPLE = "Explain how a rainbow forms, as a short list."


SIDEWAYS: list[BindingType] = [
    Binding("left", "screen.act('older_branch')", "Branch before", show=False),
    Binding("right", "screen.act('newer_branch')", "Branch after", show=False),
]
"""Keys of a focused message that no action can have elsewhere."""


def place_words(place: tuple[int, int]) -> str:
    """Which of how many branches: `‹ 2/3 ›`."""
    return f"‹ {place[0]}/{place[1]} ›"


def side_space(width: int, column: int = COLUMN) -> int:
    """Free cells on each side of the text column; `column` 0 takes all."""
    return max(1, (width - (column or width)) // 2)


def shortened(text: str) -> str:
    """A long paste cut to what one wants to see of it again."""
    lines = text.split("\n")
    kept = "\n".join(lines[:_SHOWN_LINES])[:_SHOWN]
    left = len(text) - len(kept)
    return kept if not left else f"{kept}…\n({left:,} more characters)"


def shown_text(turn: Turn) -> Content:
    """What the user wrote, and what went with it by name."""
    files = "\n".join(f"+ {harmless(label(one))}" for one in turn.attachments)
    parts = [harmless(shortened(turn.text)), "\n" if turn.text and files else "", (files, "$text-muted")]
    return Content.assemble(*filter(None, parts)) if files else Content(parts[0])


class UserMessage(Static, can_focus=True):
    """What the user wrote; dimmed while it waits and when it was refused."""

    BINDINGS: ClassVar = SIDEWAYS

    def __init__(self, turn: Turn) -> None:
        super().__init__(shown_text(turn), markup=False, classes="user")
        self.turn = turn
        self._place = (1, 1)
        self._line = 0

    def placed(self, place: tuple[int, int]) -> None:
        """Say which of how many branches it begins."""
        if place != self._place:
            self._place = place
            self._tell(place_words(place) if place[1] > 1 else "")

    def waits(self, line: int) -> None:
        """Say which in line it is while several wait; 0: nothing is said."""
        if line != self._line:
            self._line = line
            self._tell(f"{line}. in line" if line else "")

    def _tell(self, words: str) -> None:
        told = (f"\n{words}", "$text-muted") if words else ""
        self.update(Content.assemble(shown_text(self.turn), told))


class Earlier(Static):
    """Stands for the turns of an opened chat that are not shown yet."""

    def __init__(self, turns: list[Turn]) -> None:
        super().__init__("", markup=False, classes="note")
        self.turns = turns

    def on_mount(self) -> None:
        """Say how many."""
        self._count()

    def take(self) -> list[Turn]:
        """The newest of them, to be shown."""
        page, self.turns = self.turns[-_PAGE:], self.turns[:-_PAGE]
        self._count()
        return page

    def _count(self) -> None:
        self.display = bool(self.turns)
        self.update(f"{len(self.turns)} earlier messages; scroll up to see them")


class Note(Static):
    """One line about something that happened. One `about` a reply stands under it and goes with it."""

    def __init__(self, text: str, about: Reply | None = None) -> None:
        super().__init__(harmless(text), markup=False, classes="note")
        self.about = about


class Welcome(Static):
    """The first screen, gone with the first message."""

    def __init__(self, model: str, keys: Keys) -> None:
        self._known = (("enter", "send"), *keys)
        super().__init__(self._words(model), markup=False, classes="welcome")

    def introduce(self, model: str) -> None:
        """Show the model's full name once it is known."""
        self.update(self._words(model))

    def _words(self, model: str) -> Content:
        return Content.assemble(
            ("Outrider", "bold $text-primary"),
            "\n",
            (f"A chat with {harmless(model)}, on this machine.", ""),
            "\n",
            ("Tinted words came early: a drafter guessed them, the model agreed.", "$text-muted"),
            "\n\n",
            *self._keys(),
            "\n\n",
            ("Try: ", "$text-muted"),
            (_EXAMPLE, "italic"),
        )

    def _keys(self) -> list[str | tuple[str, str]]:
        parts: list[str | tuple[str, str]] = []
        for key, word in self._known:
            parts += [(key, "bold"), f" {word}    "]
        return parts


class Transcript(VerticalScroll, Bare, can_focus=False):
    """All messages; stays at the end until the user scrolls up, and again once back there."""

    def __init__(self, palette: Palette, model: str, keys: Keys) -> None:
        super().__init__(Welcome(model, keys))
        self._palette = palette
        self.keys = keys
        """What the first screen tells of: keys, each with what it does."""

    class Scrolled(Message):
        """Another part of the transcript is seen."""

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """What is near the window may have changed."""
        super().watch_scroll_y(old_value, new_value)
        self.post_message(self.Scrolled())

    def sees_end(self) -> bool:
        """Whether the newest lines are in the window."""
        return self.scroll_y >= self.max_scroll_y - self.size.height

    async def tidy(self) -> None:
        """Keep only those replies rendered that are near the window."""
        from outrider.app.chat.reply import ReplyView

        height = self.size.height
        for view in self.query_children(ReplyView):
            region = view.virtual_region
            above, below = self.scroll_y - region.bottom, region.y - (self.scroll_y + height)
            if max(above, below) < _NEAR * height:
                await view.thaw()
            elif max(above, below) > (_NEAR + 1) * height:
                await view.freeze()

    def on_mount(self) -> None:
        """Follow the output from the start."""
        self.anchor()

    def introduce(self, model: str) -> None:
        """Tell the welcome, if it is still there."""
        for welcome in self.query_children(Welcome):
            welcome.introduce(model)

    def add(self, widget: Widget) -> None:
        """Append a message, note or card."""
        self.query_children(Welcome).remove()
        self.mount(widget)

    def add_note(self, note: Note) -> None:
        """Put a note under the reply that it is about, behind others there; else at the end."""
        from outrider.app.chat.reply import ReplyView

        views = [view for view in self.query_children(ReplyView) if view.reply is note.about]
        if not views:
            self.add(note)
            return
        self.mount(note, after=self._with_notes(views[-1]))

    def _with_notes(self, widget: Widget) -> Widget:
        """The last of the notes about the reply that this shows, else the widget itself."""
        reply = getattr(widget, "reply", None)
        notes = [note for note in self.query_children(Note) if reply is not None and note.about is reply]
        return notes[-1] if notes else widget

    def add_turn(self, turn: Turn, *, waiting: bool, before: Turn | None = None) -> None:
        """Append what the user wrote, or put it before a message that waits too, and go to the end."""
        message = UserMessage(turn)
        message.set_class(waiting, "-waiting")
        later = self.message_of(before) if before is not None else None
        if later is None:
            self.add(message)
        else:
            self.mount(message, before=later)
        self.anchor()

    def begin_reply(self, turn: Turn) -> ReplyView:
        """Put a view of the turn's reply under its message; one that is there already stays until the new one is painted."""
        from outrider.app.chat.reply import ReplyView  # Markdown is loaded after the first paint

        assert turn.reply is not None
        view = ReplyView(turn.reply, self._palette)
        view.replaces = self.view_of(turn)
        message = view.replaces or self.message_of(turn)
        if message is None:
            self.mount(view)
        else:
            message.remove_class("-waiting")
            self.mount(view, after=message)
        return view

    async def drop(self, turns: list[Turn], waiting: Collection[Turn]) -> None:
        """Take away every message that is neither of these turns nor waits."""
        await self.remove_children([widget for widget in self.children if not self._stays(widget, turns, waiting)])

    async def fill(self, turns: list[Turn], kept: int, waiting: Collection[Turn]) -> dict[Turn, ReplyView]:
        """Show the turns behind the first `kept`, which are shown already; returns views to be painted."""
        unseen = sum(len(earlier.turns) for earlier in self.query_children(Earlier))
        if kept < unseen:
            return await self.show(turns, waiting)
        above = [widget for turn in turns[:kept] for widget in (self.message_of(turn), self.view_of(turn)) if widget]
        below = turns[max(kept, unseen) :]
        fresh = [turn for turn in below if self.message_of(turn) is None and self.view_of(turn) is None]
        widgets, views = self._views(fresh)
        if widgets and above:
            await self.mount_all(widgets, after=self._with_notes(above[-1]))
        elif widgets:
            first = next((widget for widget in self.children if not isinstance(widget, Earlier)), None)
            await self.mount_all(widgets, before=first)
        return views

    def _stays(self, widget: Widget, turns: list[Turn], waiting: Collection[Turn]) -> bool:
        if isinstance(widget, UserMessage):
            return widget.turn in turns or widget.turn in waiting
        reply = widget.about if isinstance(widget, Note) else getattr(widget, "reply", None)
        return reply is None or any(turn.reply is reply for turn in turns)

    def view_of(self, turn: Turn) -> ReplyView | None:
        """The widget that shows a turn's reply."""
        from outrider.app.chat.reply import ReplyView

        views = (view for view in self.query_children(ReplyView) if view.reply is turn.reply)
        return next(views, None) if turn.reply is not None else None

    async def show(self, turns: list[Turn], waiting: Collection[Turn]) -> dict[Turn, ReplyView]:
        """Show a chat from the store above what waits, its last turns at once; returns views to be painted."""
        kept = [widget for widget in self.query_children(UserMessage) if widget.turn in waiting]
        await self.remove_children([widget for widget in self.query_children() if widget not in kept])
        earlier = Earlier(turns)
        page = earlier.take()
        widgets, views = self._views(page)
        await self.mount_all([earlier, *widgets], before=kept[0] if kept else None)
        self.anchor()
        return views

    async def show_earlier(self) -> None:
        """Near the top of an opened chat, show more of it; what is seen stays where it is."""
        if self.scroll_y >= self.size.height or self.max_scroll_y <= 0:
            return
        for earlier in self.query_children(Earlier):
            widgets, views = self._views(earlier.take())
            if widgets:
                below = self.max_scroll_y - self.scroll_y
                await self.mount_all(widgets, after=earlier)
                for view in views.values():
                    await view.paint()
                self.call_after_refresh(self._keep_below, below)

    async def reveal(self, turn: Turn) -> None:
        """Show as much of an opened chat as it takes to see `turn`."""
        for earlier in self.query_children(Earlier):
            while turn in earlier.turns:
                widgets, views = self._views(earlier.take())
                await self.mount_all(widgets, after=earlier)
                for view in views.values():
                    await view.paint()

    def _keep_below(self, lines: float) -> None:
        self.scroll_to(y=self.max_scroll_y - lines, animate=False)

    def _views(self, turns: list[Turn]) -> tuple[list[Widget], dict[Turn, ReplyView]]:
        from outrider.app.chat.reply import ReplyView

        widgets: list[Widget] = []
        views: dict[Turn, ReplyView] = {}
        for turn in turns:
            if turn.said:
                widgets.append(UserMessage(turn))
            if turn.reply is not None:
                views[turn] = ReplyView(turn.reply, self._palette)
                widgets.append(views[turn])
        return widgets, views

    def message_of(self, turn: Turn) -> UserMessage | None:
        """The widget that shows a turn's text."""
        return next((widget for widget in self.query_children(UserMessage) if widget.turn is turn), None)

    def clear(self, model: str) -> None:
        """Begin again."""
        self.remove_children()
        self.mount(Welcome(model, self.keys))
        self.anchor()
