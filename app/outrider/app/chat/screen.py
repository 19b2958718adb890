"""The chat screen: transcript, prompt, status line, and what each action does to them."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.events import Key, Resize
from textual.geometry import Spacing
from textual.screen import Screen
from textual.widgets import Static

from outrider.app.chat import ChatOptions
from outrider.app.chat.actions import ACTIONS, BY_ID, BY_SLASH, Action, parse_slash
from outrider.app.chat.bindings import rebind
from outrider.app.chat.follow import PERIOD, Follower
from outrider.app.chat.keymap import Keymap
from outrider.app.chat.marks import Marks
from outrider.app.chat.palette import Palette
from outrider.app.chat.prompt import Prompt
from outrider.app.chat.sampling import changed_sampling, describe
from outrider.app.chat.session import Session, State
from outrider.app.chat.shelf import Shelf
from outrider.app.chat.stage import Stage
from outrider.app.chat.status import StatusLine, one_line
from outrider.app.chat.themes import theme_of
from outrider.app.chat.transcript import Transcript, side_space
from outrider.app.config import FIELDS
from outrider.app.config.fields import nearest

if TYPE_CHECKING:
    from outrider.app.chat.reply import ReplyView

_TWICE = 2.0  # seconds between two presses that quit
_WELCOME = (("next_drafter", "next drafter"), ("help", "help"))  # what the first screen tells of
_LATER = ("outrider.app.chat.reply", "pygments.lexers", "textual.command")  # loaded behind the first paint


def bindings(actions: Sequence[Action] = ACTIONS) -> list[Binding]:
    """All keys of all actions, before any widget's own."""
    made = []
    for action in actions:
        for key in (*action.keys, *action.empty_prompt):
            argument = f"'{action.id}', {key in action.empty_prompt}"
            made.append(Binding(key, f"act({argument})", action.title, show=False, priority=True, tooltip=action.help))
    return made


def _welcome(keymap: Keymap) -> tuple[tuple[str, str], ...]:
    return tuple((keymap.first(action), word) for action, word in _WELCOME)


class ChatScreen(Screen[None]):
    """Where everything happens; the `Deck` that the actions work on."""

    BINDINGS = bindings()
    AUTO_FOCUS = "#prompt"

    def __init__(self, options: ChatOptions, palette: Palette, follower: Follower) -> None:
        super().__init__()
        self._palette = palette
        self._follower = follower
        self.transcript = Transcript(palette, options.model.model, _welcome(follower.keymap))
        self.prompt = Prompt("Write a message")
        self.status = StatusLine()
        self.stage = Stage(self, self.transcript, self.prompt, self.status)
        self.session = Session(options, self.stage)
        self._shelf = Shelf(self)
        self._pressed = -_TWICE  # when ctrl+c was last pressed

    # ------------------------------------------------------------------------------------------------ screen

    def compose(self) -> ComposeResult:
        """Transcript over prompt over status line."""
        yield self.transcript
        with Vertical(id="prompt-row"), Horizontal(id="prompt-box"):
            yield Static("›", id="prompt-sign")
            yield self.prompt
        yield self.status

    def on_mount(self) -> None:
        """The engine starts once the screen has been painted."""
        self.stage.attach(self.session)
        self.use_keys(self._follower.keymap)
        self.stage.standing = self._follower.card()
        if self.stage.standing is not None:
            self.stage.complain(self.stage.standing)
        self.set_interval(PERIOD, lambda: self._follower.check(self))
        self.call_after_refresh(self._set_off)

    def _set_off(self) -> None:
        self.stage.spawn(self.session.begin())
        self.stage.spawn(_warm_up())

    def on_resize(self, event: Resize) -> None:
        """Keep everything in one centred column."""
        self.fit(event.size.width)

    def fit(self, width: int) -> None:
        """Centre the column in a window of so many cells."""
        sides = side_space(width, self._follower.settings.config.look.width)
        self.transcript.styles.padding = Spacing(1, sides - 1, 0, sides)  # its scrollbar takes a cell
        self.query_one("#prompt-row").styles.padding = Spacing(0, sides, 0, sides)
        self.status.styles.padding = Spacing(0, sides + 1, 0, sides + 1)

    def on_key(self, event: Key) -> None:
        """Letters act on a reply that has the focus; whoever types anything else means the prompt."""
        if self.focused is self.prompt:
            return
        if event.is_printable and event.character:
            event.stop()
            action = None if "+" in event.key else self.keymap.letters().get(event.character)
            if action is not None and self.focused is not None:
                action.run(self, "")
                return
            self.prompt.focus()
            self.prompt.insert(event.character)

    def on_transcript_scrolled(self) -> None:
        """Other replies are near the window now."""
        self.stage.scrolled()

    def on_prompt_sent(self, event: Prompt.Sent) -> None:
        """Run a slash command or send the message."""
        command = parse_slash(event.text)
        if command is None:
            text = event.text[1:] if event.text.startswith("//") else event.text
            turn = self.session.send(text)
            self.transcript.add_turn(turn, waiting=self.session.state is not State.READY)
            return
        name, argument = command
        action = BY_SLASH.get(name)
        if action is None:
            self.stage.tell(f"There is no command /{name}; /help lists them. // begins a message with a slash.")
            self.prompt.put(event.text)
        elif argument and not action.argument:
            self.stage.tell(f"/{name} takes nothing after it.")
        else:
            action.run(self, argument)

    def action_act(self, action: str, only_empty: bool = False) -> None:
        """Run an action of the registry."""
        BY_ID[action].run(self, "")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys for an empty prompt go to the prompt while it has text."""
        if action == "act" and parameters[1:] == (True,):
            return not self.prompt.text
        return super().check_action(action, parameters)

    @property
    def keymap(self) -> Keymap:
        """The keys that hold."""
        return self._follower.keymap

    def use_keys(self, keymap: Keymap) -> None:
        """Bind these keys and show them wherever keys are shown."""
        rebind(self, bindings(keymap.actions))
        self.status.keymap = keymap
        self.status.refresh()
        self.transcript.keys = _welcome(keymap)

    def pick(self, action: str) -> None:
        """Run an action from the palette; one with an argument is begun in the prompt."""
        chosen = BY_ID[action]
        if chosen.argument:
            self.prompt.put(f"/{chosen.slash} ")
            self.prompt.focus()
        else:
            chosen.run(self, "")

    # ------------------------------------------------------------------------------------------------ Deck

    def stop(self) -> None:
        """Stop the reply, or take a waiting message back, or go to the last reply."""
        if self.session.stop():
            return
        if self.focused is not self.prompt:
            self.prompt.focus()
        elif (turn := self.session.recall()) is not None:
            message = self.transcript.message_of(turn)
            if message is not None:
                message.remove()
            self.prompt.put(turn.text)
        elif replies := self.transcript.query(".reply"):
            replies.last().focus()

    def interrupt(self) -> None:
        """Copy a selection, else stop, else clear the prompt; twice quits."""
        selected = self.prompt.selected_text or self.get_selected_text()
        if selected:
            self.app.copy_to_clipboard(selected)
            self.clear_selection()
            self.stage.flash("Copied the selection")
            return
        now = monotonic()
        if now - self._pressed < _TWICE:
            self.quit()
            return
        self._pressed = now
        if self.session.stop():
            self.stage.flash("Stopped; ctrl+c again quits")
        elif self.prompt.text:
            self.prompt.put("")
        else:
            self.stage.flash("ctrl+c again quits")

    def cycle_drafter(self, by: int) -> None:
        """Go `by` drafters further."""
        self.session.cycle_drafter(by)

    def choose_drafter(self, name: str) -> None:
        """Switch to a drafter by name, or list them."""
        names = ", ".join(self.session.drafters())
        if not name:
            reply = self.session.chat.last_reply()
            why = f" Last choice: {one_line(reply.meter.why)}." if reply is not None and reply.meter.why else ""
            self.stage.tell(f"Drafter: {self.session.drafter.name}. Usable here: {names}.{why}")
        elif not self.session.choose_drafter("none" if name == "off" else name):
            self.stage.tell(f"There is no drafter {name}. Usable here: {names}.")

    def toggle_drafting(self) -> None:
        """Drafting off or on."""
        self.session.toggle_drafting()

    def toggle_marks(self) -> None:
        """Marks on or off."""
        modes = list(Marks)
        mode = modes[(modes.index(self._palette.mode) + 1) % len(modes)]
        self.show_marks(mode)
        words = "Marks off" if mode is Marks.OFF else "Marks: accepted drafts"
        self._flash_choice(words, self._follower.chosen(self, "look.marks", mode.value))

    def show_marks(self, mode: Marks) -> None:
        """Mark this from now on, in the whole transcript."""
        self._palette.show(mode)
        self.repaint_marks()

    def _flash_choice(self, words: str, note: str) -> None:
        self.stage.flash(f"{words} ({note})" if note else words)

    def fold_thought(self) -> None:
        """Fold or unfold the thought of the focused or the last reply that has one."""
        from outrider.app.chat.reply import ReplyView

        views = [view for view in self.transcript.query(ReplyView) if view.thought is not None]
        if not views:
            self.stage.flash("No reply began with a thought")
            return
        view = next((view for view in views if view is self.focused), views[-1])
        self.run_worker(self._fold(view))

    async def _fold(self, view: ReplyView) -> None:
        await view.fold_thought()
        if view.finished and view.thought is not None and not view.thought.folded:
            show = self.transcript.scroll_to_widget
            self.call_after_refresh(show, view.thought, animate=False, top=True, immediate=True)

    def change_thinking(self, word: str) -> None:
        """Ask for thinking or for none, or show which."""
        words: dict[str, bool | None] = {"on": True, "off": False, "auto": None}
        if word and word not in words:
            self.stage.tell(f"/think takes on, off or auto, not {word}.")
            return
        if word:
            self.session.think = words[word]
        now = next(name for name, think in words.items() if think is self.session.think)
        self.stage.tell(f"Thinking: {now}" + (", the model's own way." if now == "auto" else "."))

    def repaint_marks(self) -> None:
        """Paint the transcript again after the palette changed."""
        for widget in self.transcript.query(Static):
            widget.refresh()

    def new_chat(self) -> None:
        """Begin again."""
        self.session.new_chat()
        self.stage.forget()
        loaded = self.session.loaded
        self.transcript.clear(loaded.title if loaded else self.session.options.model.model)
        self.prompt.focus()
        self.stage.status_changed()

    def show_chats(self) -> None:
        """Choose one of the chats so far."""
        self._shelf.show()

    def rename_chat(self, title: str) -> None:
        """Give the chat another title."""
        self._shelf.rename(title)

    def export_chat(self, words: str) -> None:
        """Write the chat to a file, by name or format."""
        self._shelf.export(words)

    def delete_chat(self) -> None:
        """Delete the chat."""
        self._shelf.delete()

    def undo(self) -> None:
        """Bring back what was deleted last."""
        self._shelf.undo()

    def copy_reply(self) -> None:
        """Copy the focused or the last reply."""
        focused = self.focused
        reply = getattr(focused, "reply", None) or self.session.chat.last_reply()
        if reply is None or not reply.text:
            self.stage.flash("There is no reply to copy yet")
            return
        self.app.copy_to_clipboard(reply.text)
        self.stage.flash("Copied the reply, without its thought" if reply.thought.begun else "Copied the reply")

    def show_palette(self) -> None:
        """Open the command palette."""
        self.app.action_command_palette()

    def show_help(self) -> None:
        """Open the help screen."""
        from outrider.app.chat.help import HelpScreen

        self.app.push_screen(HelpScreen(self.keymap.actions))

    def scroll(self, where: str) -> None:
        """Scroll the transcript: `up`, `down`, `home` or `end`."""
        transcript = self.transcript
        if transcript.max_scroll_y <= 0:
            return
        if where == "up":
            transcript.scroll_page_up(animate=False)
        elif where == "down":
            transcript.scroll_page_down(animate=False)
        elif where == "home":
            transcript.scroll_home(animate=False)
        else:
            transcript.anchor()

    def change_system(self, text: str) -> None:
        """Set or show the system prompt."""
        chat = self.session.chat
        if text:
            chat.system = text
        self.stage.tell(f"System prompt: {chat.system}" if chat.system else "There is no system prompt.")

    def change_sampling(self, words: str) -> None:
        """Set or show sampling options."""
        try:
            changed = changed_sampling(self.session.sampling, words)
        except ValueError as error:
            self.stage.tell(str(error))
            return
        self.session.sampling = changed
        defaults = self.session.loaded.sampling if self.session.loaded else None
        self.stage.tell(describe(changed, defaults))

    def change_theme(self, name: str) -> None:
        """Another theme by name; none means dark or light."""
        themes = FIELDS["look.theme"].choices
        chosen = name or ("light" if self.app.current_theme.dark else "dark")
        if chosen not in themes:
            self.stage.tell(f"There is no theme {name}. {nearest(name, themes)} Themes: {', '.join(themes)}.")
            return
        self.app.theme = theme_of(chosen)
        self._flash_choice(f"Theme: {chosen}", self._follower.chosen(self, "look.theme", chosen))

    def change_persona(self, name: str) -> None:
        """Take on a persona of the settings, or list them."""
        self._follower.persona(self, name)

    def go_to_message(self, by: int) -> None:
        """Focus the reply `by` places further; behind the last one comes the prompt."""
        replies = list(self.transcript.query(".reply"))
        at = replies.index(self.focused) if self.focused in replies else len(replies)
        if 0 <= at + by < len(replies):
            replies[at + by].focus()
        elif at + by >= len(replies):
            self.prompt.focus()

    def write(self) -> None:
        """Back to the prompt."""
        self.prompt.focus()

    def show_leader(self) -> None:
        """Show what single letters do, and do it."""
        from outrider.app.chat.leader import LeaderScreen

        self.app.push_screen(LeaderScreen(self.keymap.actions), lambda chosen: self.pick(chosen) if chosen else None)

    def quit(self) -> None:
        """Leave."""
        self.app.exit()


async def _warm_up() -> None:
    """Import what the first reply and the palette need, beside the typing."""
    loop = asyncio.get_running_loop()
    for name in _LATER:
        await loop.run_in_executor(None, importlib.import_module, name)
