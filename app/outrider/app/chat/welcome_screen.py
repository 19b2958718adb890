"""The very first screen: what was found on this machine, and models to begin with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.events import Key, Paste
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from outrider.app import render
from outrider.app.chat.clean import harmless
from outrider.app.chat.models.rows import Room
from outrider.app.chat.welcome import STARTER, Offer, disk_free, machine, offers, shown_local, starter_is_here
from outrider.app.client import EngineError
from outrider.core.base import protocol
from outrider.core.base.protocol import DrafterChoice, ModelRow

if TYPE_CHECKING:
    from outrider.app.chat.screen import ChatScreen


class WelcomeScreen(ModalScreen[Offer]):
    """Ends with what was chosen, None for the starter. Whoever begins to type means the chat behind it."""

    BINDINGS: ClassVar = [Binding("escape,ctrl+c", "leave", "The starter", show=False)]
    AUTO_FOCUS = "#welcome OptionList"

    def __init__(self) -> None:
        super().__init__()
        self._offers: list[Offer | None] = [None]
        self.typed = ""  # for the prompt

    def compose(self) -> ComposeResult:
        """What was found over what can be chosen."""
        with Vertical(id="welcome"):
            yield Static(
                Content.assemble(
                    ("Welcome to Outrider", "bold $text-primary"),
                    "\nA chat with models on this machine. Nothing leaves it, and nothing has to be set up.",
                ),
                markup=False,
            )
            yield Static("Looking at this machine …", markup=False, classes="found")
            yield OptionList(_starter(), markup=False, compact=True)
            yield Static(
                "enter begins · esc, or typing, begins with the starter · /models shows all models, any time",
                markup=False,
                classes="footer",
            )

    def take(self, rows: Sequence[ModelRow]) -> None:
        """The engine has told what there is."""
        memory, disk = Room(), disk_free()
        found = render.pairs(machine(rows, memory, disk))
        self.query_one(".found", Static).update(harmless(found))
        shown = self.query_one(OptionList)
        if starter_is_here(rows):
            shown.replace_option_prompt_at_index(0, _starter(here=True).prompt)
        for row, words in shown_local(rows, memory):
            self._add(shown, Offer(row), words)
        for offer in offers(rows, memory, disk):
            self._add(shown, offer, offer.words(memory))

    def _add(self, shown: OptionList, offer: Offer, words: str) -> None:
        self._offers.append(offer)
        title = offer.row.title if offer.row.title.casefold() != offer.row.name.casefold() else ""
        shown.add_option(Option(_line(offer.row.name, title, words)))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """That one."""
        if not self.typed:
            self.dismiss(self._offers[event.option_index])

    def action_leave(self) -> None:
        """The starter."""
        if not self.typed:
            self.dismiss(None)

    def on_key(self, event: Key) -> None:
        """A message begins."""
        if event.is_printable and event.character is not None:
            event.stop()
            self._type(event.character)

    def on_paste(self, event: Paste) -> None:
        """As if it were typed."""
        event.stop()
        self._type(event.text)

    def _type(self, text: str) -> None:
        begins = not self.typed
        if begins and not text.strip():
            return
        self.typed += text
        if begins:
            self.dismiss(None)


def _starter(*, here: bool = False) -> Option:
    words = f"{'here' if here else '98 MB to download'} · ready in seconds · to look around"
    return Option(_line(STARTER, "SmolLM2, a tiny model for any computer", words))


def _line(name: str, title: str, words: str) -> Content:
    return Content.assemble(
        (harmless(name), "bold"),
        (f"  {harmless(title)}" if title else "", ""),
        (f"\n  {harmless(words)}", "$text-muted"),
    )


async def greet(screen: ChatScreen) -> None:
    """Show it, tell it what the engine knows, and let the chat begin behind it."""
    shown = WelcomeScreen()
    await screen.app.push_screen(shown, lambda offer: _begin(screen, offer, shown.typed))
    try:
        told = await screen.session.ask(lambda number: protocol.Models(id=number, everything=True))
        rows = protocol.as_type(told, list[ModelRow])
    except EngineError:  # bringing it up, next, tells that in a card
        rows = []
    screen.models.rows = rows
    if shown.is_attached:
        shown.take(rows)
    await screen.session.begin()


def _begin(screen: ChatScreen, offer: Offer | None, typed: str) -> None:
    if typed:
        screen.prompt.insert(typed)
    if offer is None:
        return
    screen.models.use(offer.row)
    known = offer.drafter
    if known is None or not known.repo:
        return

    def ride(_: ModelRow) -> None:
        if screen.models.loaded == offer.row.name:
            screen.session.ride_with(DrafterChoice(name=known.method, weights=known.repo))

    screen.models.pulls.add(known.repo, known.nbytes, ride)
