"""The column of messages, and the small widgets in it that are not replies."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from outrider.app.chat.clean import harmless
from outrider.app.chat.palette import Palette
from outrider.app.chat.session import Problem
from outrider.app.chat.talk import Turn

if TYPE_CHECKING:
    from outrider.app.chat.reply import ReplyView

_SHOWN, _SHOWN_LINES = 2000, 24  # characters and lines of a message of the user
_PAGE = 20  # turns of an opened chat that are shown at once
_NEAR = 2  # heights of the window within which replies are kept rendered
COLUMN = 100  # cells of text at most
Keys = tuple[tuple[str, str], ...]
_EXAMPLE = "Explain how a rainbow forms, as a short list."


def side_space(width: int, column: int = COLUMN) -> int:
    """Free cells on each side of the text column; `column` 0 takes all."""
    return max(1, (width - (column or width)) // 2)


def shortened(text: str) -> str:
    """A long paste cut to what one wants to see of it again."""
    lines = text.split("\n")
    kept = "\n".join(lines[:_SHOWN_LINES])[:_SHOWN]
    left = len(text) - len(kept)
    return kept if not left else f"{kept}…\n({left:,} more characters)"


class UserMessage(Static):
    """What the user wrote; dimmed while it waits and when it was refused."""

    def __init__(self, turn: Turn) -> None:
        super().__init__(harmless(shortened(turn.text)), markup=False, classes="user")
        self.turn = turn


class Earlier(Static):
    """Stands for the turns of an opened chat that are not shown yet."""

    def __init__(self, turns: list[Turn]) -> None:
        super().__init__("", markup=False, classes="note")
        self._turns = turns

    def on_mount(self) -> None:
        """Say how many."""
        self._count()

    def take(self) -> list[Turn]:
        """The newest of them, to be shown."""
        page, self._turns = self._turns[-_PAGE:], self._turns[:-_PAGE]
        self._count()
        return page

    def _count(self) -> None:
        self.display = bool(self._turns)
        self.update(f"{len(self._turns)} earlier messages; scroll up to see them")


class Note(Static):
    """One line about something that happened."""

    def __init__(self, text: str) -> None:
        super().__init__(harmless(text), markup=False, classes="note")


class Card(Static):
    """An error: what happened, why, what to do."""

    def __init__(self, problem: Problem) -> None:
        parts: list[str | tuple[str, str]] = [(harmless(problem.title), "bold $text-error")]
        if problem.text:
            parts += ["\n", harmless(problem.text)]
        if problem.hint:
            parts += ["\n", (harmless(problem.hint), "$text-muted")]
        super().__init__(Content.assemble(*parts), markup=False, classes="card")


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


class Transcript(VerticalScroll, can_focus=False):
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

    def add_turn(self, turn: Turn, *, waiting: bool) -> None:
        """Append what the user wrote and go to the end."""
        message = UserMessage(turn)
        message.set_class(waiting, "-waiting")
        self.add(message)
        self.anchor()

    def begin_reply(self, turn: Turn) -> ReplyView:
        """Put a view of the turn's reply under its message."""
        from outrider.app.chat.reply import ReplyView  # Markdown is loaded after the first paint

        assert turn.reply is not None
        view = ReplyView(turn.reply, self._palette)
        message = self.message_of(turn)
        if message is None:
            self.mount(view)
        else:
            message.remove_class("-waiting")
            self.mount(view, after=message)
        return view

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

    def _keep_below(self, lines: float) -> None:
        self.scroll_to(y=self.max_scroll_y - lines, animate=False)

    def _views(self, turns: list[Turn]) -> tuple[list[Widget], dict[Turn, ReplyView]]:
        from outrider.app.chat.reply import ReplyView

        widgets: list[Widget] = []
        views: dict[Turn, ReplyView] = {}
        for turn in turns:
            if turn.text:
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
