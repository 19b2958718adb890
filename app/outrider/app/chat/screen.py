"""The chat screen: transcript, prompt, status line, and what each action does to them."""

from __future__ import annotations

import asyncio
import importlib
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
from outrider.app.chat.actions import ACTIONS, BY_ID, BY_SLASH, parse_slash
from outrider.app.chat.marks import Marks
from outrider.app.chat.palette import Palette
from outrider.app.chat.prompt import Prompt
from outrider.app.chat.sampling import changed_sampling, describe
from outrider.app.chat.session import Session, State
from outrider.app.chat.stage import Stage
from outrider.app.chat.status import StatusLine
from outrider.app.chat.themes import DARK, LIGHT
from outrider.app.chat.transcript import Transcript, side_space

if TYPE_CHECKING:
    from outrider.app.chat.reply import ReplyView

_TWICE = 2.0  # seconds between two presses that quit
_MESSAGE_KEYS = {key for action in ACTIONS for key in action.on_message}
_LATER = ("outrider.app.chat.reply", "pygments.lexers", "textual.command")  # loaded behind the first paint


def bindings() -> list[Binding]:
    """All keys of all actions, before any widget's own."""
    made = []
    for action in ACTIONS:
        for key in (*action.keys, *action.empty_prompt):
            argument = f"'{action.id}', {key in action.empty_prompt}"
            made.append(Binding(key, f"act({argument})", action.title, show=False, priority=True, tooltip=action.help))
    return made


class ChatScreen(Screen[None]):
    """Where everything happens; the `Deck` that the actions work on."""

    BINDINGS = bindings()
    AUTO_FOCUS = "#prompt"

    def __init__(self, options: ChatOptions, palette: Palette) -> None:
        super().__init__()
        self._palette = palette
        self.transcript = Transcript(palette, options.model.model)
        self.prompt = Prompt("Write a message")
        self.status = StatusLine()
        self.stage = Stage(self, self.transcript, self.prompt, self.status)
        self.session = Session(options, self.stage)
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
        self.call_after_refresh(self._set_off)

    def _set_off(self) -> None:
        self.stage.spawn(self.session.bring_up())
        self.stage.spawn(_warm_up())

    def on_resize(self, event: Resize) -> None:
        """Keep everything in one centred column."""
        sides = side_space(event.size.width)
        self.transcript.styles.padding = Spacing(1, sides - 1, 0, sides)  # its scrollbar takes a cell
        self.query_one("#prompt-row").styles.padding = Spacing(0, sides, 0, sides)
        self.status.styles.padding = Spacing(0, sides + 1, 0, sides + 1)

    def on_key(self, event: Key) -> None:
        """Whoever types while a reply has the focus means the prompt."""
        if event.key in _MESSAGE_KEYS or self.focused is self.prompt:
            return
        if event.is_printable and event.character:
            event.stop()
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
            self.stage.tell(f"Drafter: {self.session.drafter.name}. Usable here: {names}.")
        elif not self.session.choose_drafter("none" if name == "off" else name):
            self.stage.tell(f"There is no drafter {name}. Usable here: {names}.")

    def toggle_drafting(self) -> None:
        """Drafting off or on."""
        self.session.toggle_drafting()

    def toggle_marks(self) -> None:
        """Marks on or off."""
        modes = list(Marks)
        mode = modes[(modes.index(self._palette.mode) + 1) % len(modes)]
        self._palette.show(mode)
        self.repaint_marks()
        self.stage.flash("Marks off" if mode is Marks.OFF else "Marks: accepted drafts")

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

        self.app.push_screen(HelpScreen())

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

    def toggle_theme(self) -> None:
        """Dark or light."""
        self.app.theme = LIGHT.name if self.app.current_theme.dark else DARK.name

    def quit(self) -> None:
        """Leave."""
        self.app.exit()


async def _warm_up() -> None:
    """Import what the first reply and the palette need, beside the typing."""
    loop = asyncio.get_running_loop()
    for name in _LATER:
        await loop.run_in_executor(None, importlib.import_module, name)
