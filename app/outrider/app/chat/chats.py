"""The chats so far over the screen: filtered while one types, opened with enter, deleted with the delete key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from outrider.app.chat.clean import harmless
from outrider.app.store.problems import StoreError
from outrider.app.store.records import Hit, Row

_LINES = 200  # chats and messages that are listed


class ChatsScreen(ModalScreen[str]):
    """Ends with the id of the chosen chat, empty if none was.

    `look` finds chats, and messages once there are words, or raises StoreError; `delete` deletes a chat and says so.
    """

    BINDINGS: ClassVar = [
        Binding("escape,f6,ctrl+c", "leave", "Close", show=False),
        Binding("down,ctrl+n", "step(1)", "Next", show=False, priority=True),
        Binding("up,ctrl+p", "step(-1)", "Previous", show=False, priority=True),
        Binding("delete", "delete", "Delete", show=False, priority=True),
    ]
    AUTO_FOCUS = "#chats Input"

    def __init__(
        self,
        look: Callable[[str, int], Awaitable[Sequence[Row | Hit]]],
        delete: Callable[[str], Awaitable[bool]],
    ) -> None:
        super().__init__()
        self._look, self._delete = look, delete
        self._found: list[Row | Hit] = []

    def compose(self) -> ComposeResult:
        """What to look for, what was found, and what the keys do."""
        with Vertical(id="chats"):
            yield Input(placeholder="Words to look for", compact=True)
            yield OptionList(markup=False, compact=True)
            yield Static("enter opens · delete deletes, /undo brings back · esc closes", markup=False, classes="footer")

    async def on_mount(self) -> None:
        """Everything, until words come."""
        await self._fill()

    def on_input_changed(self, _: Input.Changed) -> None:
        """Look again; what was asked before is not awaited."""
        self.run_worker(self._fill(), exclusive=True)

    async def _fill(self) -> None:
        words = self.query_one(Input).value.strip()
        nothing = "Nothing has all of these words" if words else "There is no chat yet"
        try:
            found = list(await self._look(words, _LINES))
        except StoreError as error:
            found, nothing = [], harmless(error.message)
        shown = self.query_one(OptionList)
        shown.clear_options()
        self._found = found
        shown.add_options([Option(_line(one)) for one in found])
        if not found:
            shown.add_option(Option(nothing, disabled=True))
        shown.highlighted = 0 if found else None

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Open what is highlighted."""
        self.dismiss(self._chosen())

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """One was clicked."""
        self.dismiss(self._chosen(event.option_index))

    def _chosen(self, place: int | None = None) -> str:
        place = self.query_one(OptionList).highlighted if place is None else place
        if place is None or place >= len(self._found):
            return ""
        one = self._found[place]
        return one.id if isinstance(one, Row) else one.chat

    def action_step(self, by: int) -> None:
        """Highlight another one; the focus stays with the words."""
        shown = self.query_one(OptionList)
        if by > 0:
            shown.action_cursor_down()
        else:
            shown.action_cursor_up()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In the middle of the words the delete key is theirs."""
        field = self.query_one(Input)
        return super().check_action(action, parameters) if action != "delete" else at_end(field)

    async def action_delete(self) -> None:
        """Delete the highlighted chat."""
        if not (name := self._chosen()):
            return
        if await self._delete(name):
            await self._fill()
        elif any(isinstance(one, Row) and one.id == name and one.in_use for one in self._found):
            self.query_one(".footer", Static).update("Not deleted: it is open in another window · esc closes")

    def action_leave(self) -> None:
        """Go on with the chat that is open."""
        self.dismiss("")


def at_end(field: Input) -> bool:
    """Whether there is nothing in a field that the delete key could take away."""
    return field.selection.is_empty and field.cursor_position >= len(field.value)


def _line(one: Row | Hit) -> Content:
    """Title and time of a chat; of a message the words around what was found too."""
    title = harmless(" ".join(one.title.split()))
    moment = datetime.fromtimestamp(one.updated if isinstance(one, Row) else one.created)
    when = f"{moment:%Y-%m-%d %H:%M}"
    if isinstance(one, Row):
        told = f"  {one.messages}" + ("  open in another window" if one.in_use else "")
        return Content.assemble((when, "$text-muted"), f"  {title}", (told, "$text-muted"))
    parts: list[str | tuple[str, str]] = [(when, "$text-muted"), f"  {title}\n    "]
    text, end = " ".join(harmless(one.snippet).split("\n")), 0
    for start, stop in one.marked:
        parts += [(text[end:start], "$text-muted"), (text[start:stop], "bold")]
        end = stop
    return Content.assemble(*parts, (text[end:], "$text-muted"))
