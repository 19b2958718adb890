"""What stands beside the prompt and works on it: completion, attachments, search, the queue, an editor of the user's own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from outrider.app.chat.input.attach import Refused, estimate, is_long, label, pasted, read_file
from outrider.app.chat.input.candidate import Entry, Menu
from outrider.app.chat.input.completing import Completing
from outrider.app.chat.input.keeping import Keeping, add
from outrider.app.chat.input.lists import Picking, Searching, Waiting
from outrider.app.chat.input.widgets import Chips, Popup
from outrider.app.chat.session import State
from outrider.app.store.problems import StoreError

if TYPE_CHECKING:
    from outrider.app.chat.screen import ChatScreen
    from outrider.app.chat.talk import Turn
    from outrider.app.store.records import Attachment

_SURE = 100  # estimated tokens that say how far off estimates are
_EDITABLE = 100_000  # characters of a paste that may be unfolded


class Input:
    """The prompt's companion."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self.popup = Popup(self._clicked)
        self.chips = Chips(self.remove, self.unfold, self._screen.write)
        self.menu = Menu()
        self.keeping = Keeping(screen)
        self._completing = Completing(screen, self._refresh)
        self._picking: Picking | None = None  # a list that was asked for
        self._shut = ""  # the text for which completion was closed
        self._folds_next = False
        self._place: int | None = None  # in the queue of the message that is edited
        self._left: int | None = None  # the same, of the text that has just left the prompt
        self._kept = ""  # a text that a command has displaced
        self._chat = screen.session.chat
        self._counted: tuple[tuple[Attachment, ...], int] | None = None  # what the line of attachments tells of
        screen.prompt.companion = self
        self._queue: tuple[Turn, ...] = ()  # as it is shown
        screen.stage.heads += [lambda _: self.recount(), lambda _: self._number()]

    # ------------------------------------------------------------------------------------------------ the prompt

    def changed(self) -> None:
        """The prompt has another text, or other attachments."""
        self._chat = self._screen.session.chat
        if self._kept and not self._screen.prompt.text:
            kept, self._kept = self._kept, ""
            self._screen.prompt.put(kept)
            return
        if self._screen.prompt.text or self._screen.prompt.attachments:
            self._left = None
        elif self._place is not None:
            self._left, self._place = self._place, None
        self.recount()
        self._refresh()
        if self._picking is None:  # what is searched for is no draft
            self.keeping.changed()

    def recount(self) -> None:
        """Show what is attached, if that or the context is new: counting a long text at every key would be felt."""
        loaded = self._screen.session.loaded
        told = self._screen.prompt.attachments, loaded.context if loaded else 0
        if self._counted is None or self._counted[0] is not told[0] or self._counted[1] != told[1]:
            self._counted = told
            self.chips.show(*told, self._scale() if told[0] else 1.0)

    def _scale(self) -> float:
        """How many tokens this model makes of one that was estimated, by the last prompt that it counted."""
        reply = self._screen.session.chat.last_reply()
        report = reply.report if reply is not None else None
        if report is None or not report.prompt_tokens:
            return 1.0
        *asked, _ = self._screen.session.chat.messages()
        guess = estimate("\n".join(message.content for message in asked))
        return min(3.0, max(0.5, report.prompt_tokens / guess)) if guess >= _SURE else 1.0

    def settle(self) -> None:
        """The text came from elsewhere than the keys: no completion until it changes."""
        self._shut = self._screen.prompt.text

    def begin(self, command: str) -> None:
        """Begin a command; what stands in the prompt comes back after it."""
        prompt = self._screen.prompt
        kept = self._kept or prompt.text
        prompt.put(command)
        self._kept = "" if kept.startswith("/") else kept
        self._shut = ""
        prompt.focus()
        self._refresh()

    async def opened(self, typed: str, attachments: Sequence[Attachment]) -> None:
        """Another chat is shown."""
        before, self._chat = self._chat, self._screen.session.chat
        await self.keeping.moved(before.id)
        if typed or attachments:
            add(self._screen.prompt, typed, attachments)

    def close(self) -> None:
        """The chat ends."""
        self.leave()
        self.keeping.close()

    def _refresh(self) -> None:
        entries: list[Entry] | None
        if self._picking is not None:
            entries = self._picking.entries()
        elif not self._screen.prompt.text or self._screen.prompt.text == self._shut:
            entries = []
        else:
            self._shut = ""
            entries = self._completing.entries() if self._completing.typed() else []
        self.menu.show(entries or [])
        self._draw()

    def _draw(self) -> None:
        if self.popup.is_attached:
            self.popup.show(self.menu, self._picking.title if self._picking else "")

    def key(self, name: str) -> bool:
        """Take a key before the prompt does."""
        if self._picking is None:
            self._refresh()  # what was typed just now may not have been told yet
        if self._picking is not None and self._picking.key(name, self.menu):
            self._refresh()
            return True
        if name in ("up", "down") and self.menu.entries:
            self.menu.move(1 if name == "down" else -1)
            self._draw()
            return True
        if name == "tab":
            self._tab()
            return True
        if name == "shift+tab":
            self._screen.focus_previous()
            return True
        if name == "enter":
            return self._enter()
        prompt = self._screen.prompt
        if (
            name == "backspace"
            and prompt.attachments
            and prompt.selection.is_empty
            and prompt.cursor_location == (0, 0)
        ):
            self.remove(len(prompt.attachments) - 1)
            return True
        if name == "up" and not prompt.text and self._screen.session.queue:
            self.edit_waiting()
            return True
        return False

    def _tab(self) -> None:
        """Complete; where nothing can be, nothing: the focus never goes to a message by itself."""
        if self.menu.chosen is not None or self._picking is not None:
            self._take(enter=False)
        elif self._completing.typed() is not None:
            self._shut = ""
            self._refresh()

    def _enter(self) -> bool:
        if self._picking is not None:
            self._take(enter=True)
            return True
        entry, typed = self.menu.chosen, self._completing.typed()
        if entry is None or typed is None or entry.candidate.text == typed.query:
            return False
        if not self.menu.moved and not (entry.sure and typed.query):
            return False
        self._take(enter=True)
        return True

    def _clicked(self, place: int) -> None:
        self.menu.at, self.menu.moved = place, True
        self._take(enter=True)

    def _take(self, *, enter: bool) -> None:
        entry = self.menu.chosen
        if self._picking is not None:
            picking, self._picking = self._picking, None
            picking.take(entry)
            self.settle()
        elif entry is not None:
            typed = self._completing.typed()
            path = self._completing.complete(entry)
            if path:
                self.attach(path)
            elif enter and typed is not None and typed.kind != "path" and not entry.candidate.more:
                self._screen.prompt.send()
        self._refresh()

    @property
    def listing(self) -> bool:
        """Whether a list that was asked for is open."""
        return self._picking is not None

    def leave(self) -> bool:
        """Close what is open beside the prompt. False if nothing is."""
        if self._picking is not None:
            picking, self._picking = self._picking, None
            picking.leave()
        elif not self.menu.entries:
            return False
        self.settle()
        self._refresh()
        return True

    # ------------------------------------------------------------------------------------------------ attachments

    def attach(self, words: str) -> None:
        """Attach a file; without a name, begin to type one."""
        prompt = self._screen.prompt
        if not words:
            lead = "" if not prompt.text or prompt.text[-1].isspace() else " "
            prompt.move_cursor(prompt.document.end)
            prompt.insert(f"{lead}@")
            prompt.focus()
            return
        self._screen.stage.spawn(self._attach(Path(words.strip('"')).expanduser()))

    async def _attach(self, path: Path) -> None:
        prompt, stage = self._screen.prompt, self._screen.stage
        try:
            found = await asyncio.to_thread(read_file, path)
        except Refused as error:
            stage.tell(" ".join(filter(None, (error.message, error.hint))))
            return
        kept = [one for one in prompt.attachments if one.path != found.path]
        prompt.attach([*kept, found])
        stage.flash(f"{label(found)} goes with the next message")

    def paste(self, text: str) -> bool:
        """Fold a long paste, or any if it was asked for."""
        if not text.strip() or not (self._folds_next or is_long(text)):
            return False
        self._folds_next = False
        prompt = self._screen.prompt
        prompt.attach([*prompt.attachments, pasted(text, prompt.attachments)])
        return True

    def fold_next(self) -> None:
        """The next paste becomes an attachment, however short."""
        self._folds_next = True
        self._screen.write()
        self._screen.stage.flash("Paste now: it goes with the message, not into it")

    def remove(self, place: int) -> None:
        """Take an attachment away."""
        prompt = self._screen.prompt
        kept = list(prompt.attachments)
        gone = kept.pop(place)
        prompt.attach(kept)
        if not kept:
            self._screen.write()
        self._screen.stage.flash(f"{label(gone)} does not go with the message")

    def unfold(self, place: int) -> None:
        """Put the text of an attachment into the prompt, at the cursor."""
        prompt = self._screen.prompt
        one = prompt.attachments[place]
        if len(one.text) > _EDITABLE:
            self._screen.stage.flash("This is too long to be edited here")
            return
        prompt.insert(one.text)
        prompt.attach([other for at, other in enumerate(prompt.attachments) if at != place])
        self._screen.write()

    def choose_attachment(self) -> None:
        """Go to the line of attachments."""
        self.chips.focus()

    # ------------------------------------------------------------------------------------------------ lists

    def search(self) -> None:
        """Search everything that was ever sent; again: the next older one."""
        if isinstance(self._picking, Searching):
            self.menu.move(1)
            self._draw()
            return
        self._pick(Searching(self._screen.prompt))
        self._screen.stage.spawn(self._look_back())

    async def _look_back(self) -> None:
        try:
            prompts = await self._screen.session.keeper.ask(lambda store: store.prompts(-1))
        except StoreError as error:
            self._screen.stage.tell(error.message)
            return
        if isinstance(self._picking, Searching):
            self._picking.add(prompts)
            self._refresh()

    def show_waiting(self) -> None:
        """Messages that wait, in their order, to edit or remove."""
        self._pick(Waiting(self._screen.session.queue, self.edit_waiting, self.drop_waiting))

    def _pick(self, picking: Picking) -> None:
        if self._picking is not None:
            self._picking.leave()
        self._picking = picking
        self._screen.write()
        self._refresh()

    # ------------------------------------------------------------------------------------------------ the queue

    def edit_waiting(self, turn: Turn | None = None) -> bool:
        """Take a waiting message, else the newest, back into the prompt; sent again it takes its place again."""
        queue = list(self._screen.session.queue)
        turn = turn or (queue[-1] if queue else None)
        if turn not in queue or turn is None or not self._clear():
            return False
        place = queue.index(turn)
        self._forget(turn)
        self._screen.prompt.put(turn.text, turn.attachments)
        self._place = place
        self._screen.write()
        return True

    def _clear(self) -> bool:
        """Whether nothing is lost when the prompt gets another text."""
        prompt = self._screen.prompt
        if prompt.text.strip() or prompt.attachments:
            self._screen.stage.flash("Send or clear what stands in the prompt first")
            return False
        return True

    def drop_waiting(self, turn: Turn) -> bool:
        """A waiting message is not to be sent."""
        if turn not in self._screen.session.queue:
            return False
        self._forget(turn)
        self._screen.stage.flash("Not sent")
        return True

    def _number(self) -> None:
        """Say at each waiting message which in line it is."""
        queue = tuple(self._screen.session.queue)
        if queue == self._queue:
            return
        before, self._queue = self._queue, queue
        for turn in dict.fromkeys((*before, *queue)):
            message = self._screen.transcript.message_of(turn)
            if message is not None:
                message.waits(queue.index(turn) + 1 if turn in queue and len(queue) > 1 else 0)

    def _forget(self, turn: Turn) -> None:
        self._screen.session.recall(turn)
        message = self._screen.transcript.message_of(turn)
        if message is not None:
            message.remove()

    def send(self, text: str, attachments: Sequence[Attachment]) -> None:
        """Send a message, or put it in line; one that waited before takes its place again."""
        session = self._screen.session
        place, self._left = self._left, None
        place = None if place is None or place > len(session.queue) else place
        turn = session.send(text, attachments, place)
        later = None if place is None else next(iter(list(session.queue)[place + 1 :]), None)
        self._screen.transcript.add_turn(turn, waiting=session.state is not State.READY, before=later)
        self._screen.stage.status_changed()

    # ------------------------------------------------------------------------------------------------ the editor

    def edit_outside(self) -> None:
        """Edit the prompt in the user's own editor."""
        from outrider.app.chat.input import editor

        prompt, app = self._screen.prompt, self._screen.app
        try:
            words = editor.command()
            with app.suspend():
                text = editor.edit(prompt.text, words)
        except editor.NoEditor as error:
            self._screen.stage.tell(str(error))
            return
        except SuspendNotSupported:
            self._screen.stage.tell("This terminal cannot be given to another program.")
            return
        prompt.put(text)
        self._screen.write()
        self._screen.refresh()
