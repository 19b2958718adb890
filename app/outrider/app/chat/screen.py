"""The chat screen: transcript, prompt, status line, and what each action does to them."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Sequence
from time import monotonic

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.events import DescendantBlur, DescendantFocus, Key, Paste, Resize
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from outrider.app.chat import ChatOptions
from outrider.app.chat.actions import ACTIONS, BY_ID, BY_SLASH, Action, parse_slash
from outrider.app.chat.bindings import rebind
from outrider.app.chat.branching import Branching
from outrider.app.chat.cards import Cards
from outrider.app.chat.choices import Choices
from outrider.app.chat.compare.room import Comparing
from outrider.app.chat.copying import Copying
from outrider.app.chat.drafters import Drafters
from outrider.app.chat.find import Find
from outrider.app.chat.follow import PERIOD, Follower
from outrider.app.chat.history.room import History
from outrider.app.chat.input.room import Input
from outrider.app.chat.inspect.room import Inspection
from outrider.app.chat.keymap import Keymap
from outrider.app.chat.letters import Burst, Letters
from outrider.app.chat.log import Log
from outrider.app.chat.messages import Messages
from outrider.app.chat.models.room import Models
from outrider.app.chat.palette import Palette
from outrider.app.chat.prompt import Prompt
from outrider.app.chat.session import Session
from outrider.app.chat.settings import Board
from outrider.app.chat.shelf import Shelf
from outrider.app.chat.sight import Sight
from outrider.app.chat.stage import Stage
from outrider.app.chat.stats.room import Stats, arrange
from outrider.app.chat.status import StatusLine
from outrider.app.chat.terminal import prompt_words
from outrider.app.chat.training import Training
from outrider.app.chat.transcript import Transcript
from outrider.app.config.fields import nearest
from outrider.app.config.settle import Settings

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
    """Where everything happens; what the actions work on, most of them through one of its rooms."""

    BINDINGS = bindings()
    AUTO_FOCUS = "#prompt"

    def __init__(self, options: ChatOptions, palette: Palette, follower: Follower) -> None:
        super().__init__()
        self._follower = follower
        self.transcript = Transcript(palette, options.model.model, _welcome(follower.keymap))
        self.prompt = Prompt(prompt_words(os.environ))
        self.status = StatusLine()
        self.stage = Stage(self, self.transcript, self.prompt, self.status)
        self.session = Session(options, self.stage)
        self.shelf = Shelf(self)
        self.choices = Choices(self, follower)
        self.sight = Sight(self, palette, follower)
        self.copying = Copying(self)
        self.find = Find(self, palette)
        self.letters = Letters(self)
        self.messages = Messages(self)
        self.branching = Branching(self)
        self.models = Models(self, follower)
        self.drafters = Drafters(self)
        self.training = Training(self)
        self.logbook = Log(self)
        self.cards = Cards(self)
        self.board = Board(self, follower)
        self.comparing = Comparing(self, palette)
        self.stats = Stats(self, follower)
        self.past = History(self)
        self.inspection = Inspection(self, always=follower.settings.config.look.details)
        self.input = Input(self)
        self._pressed = -_TWICE  # when ctrl+c was last pressed

    # ------------------------------------------------------------------------------------------------ screen

    def compose(self) -> ComposeResult:
        """Header over transcript, perhaps a panel beside it, over figures over prompt over status line."""
        yield self.stats.header
        with Horizontal(id="middle"):
            yield self.transcript
            yield self.stats.side
        yield self.stats.strip
        with Vertical(id="prompt-row"):
            yield self.input.popup
            yield self.input.chips
            with Horizontal(id="prompt-box"):
                yield Static("›", id="prompt-sign")
                yield self.prompt
        yield self.status

    def on_mount(self) -> None:
        """The engine starts once the screen has been painted."""
        self.stage.frames.tick = self._follower.pace.tick
        self.stage.attach(self.session)
        self.stats.attach()
        self.use_keys(self._follower.keymap)
        self.stage.standing = self._follower.card()
        if self.stage.standing is not None:
            self.stage.complain(self.stage.standing)
        self.set_interval(PERIOD, lambda: self._follower.check(self))
        self.call_after_refresh(self._set_off)

    def _set_off(self) -> None:
        if self.session.options.welcome:
            from outrider.app.chat.welcome_screen import greet

            self.stage.spawn(greet(self))
        else:
            self.stage.spawn(self.session.begin())
        self.stage.spawn(self.input.keeping.begin())
        self.stage.spawn(_warm_up())

    def on_unmount(self) -> None:
        """The terminal gets its title back."""
        self.stats.leave()

    def on_resize(self, event: Resize) -> None:
        """Keep everything in one centred column."""
        self.fit(event.size.width)

    def fit(self, width: int) -> None:
        """Centre the column in a window of so many cells, and give header and figures their places."""
        arrange(self, (width, self.size.height), self._follower.settings.config.look.width)

    def on_key(self, event: Key) -> None:
        """Letters act on a message that has the focus; whoever types anything else means the prompt."""
        if self.focused is self.prompt:
            self._late(event)
        elif event.is_printable and event.character:
            event.stop()
            self.letters.press(event.character, self.focused, plain="+" not in event.key)
        elif self.letters.other(event.key):
            event.stop()

    def _late(self, event: Key) -> None:
        """A key on its way to a message when the one before it gave the focus to the prompt: it is part of what is typed."""
        if event.is_printable and event.character:
            event.stop()
            self.prompt.insert(event.character)
        elif event.key == "enter":
            event.stop()
            self.prompt.send()

    def on_burst_quiet(self, event: Burst.Quiet) -> None:
        """No letter has followed the last one."""
        self.letters.settle(event)

    def on_paste(self, event: Paste) -> None:
        """What is pasted while something else has the focus is meant for the prompt as well."""
        if self.focused is not self.prompt:
            event.stop()
            self.letters.type(self.letters.held())
            self.prompt.post_message(Paste(event.text))

    def on_descendant_focus(self, _: DescendantFocus) -> None:
        """The last line tells what works there."""
        self.stage.status_changed()

    def on_descendant_blur(self, _: DescendantBlur) -> None:
        """What was pressed there is forgotten."""
        self.letters.left()
        self.stage.status_changed()

    def _reset_focus(self, widget: Widget, avoiding: list[Widget] | None = None) -> None:
        """When what has the focus goes away, the prompt gets it, and not a message that happens to stand beside it."""
        if self.focused is widget and self.prompt.is_attached:
            self.set_focus(self.prompt)
        else:
            super()._reset_focus(widget, avoiding)

    def on_transcript_scrolled(self) -> None:
        """Other replies are near the window now."""
        self.stage.scrolled()

    def on_prompt_sent(self, event: Prompt.Sent) -> None:
        """Run a slash command or send the message."""
        command = parse_slash(event.text)
        if command is None:
            text = event.text[1:] if event.text.startswith("//") else event.text
            if self.branching.take(text, event.attachments):
                return
            self.input.send(text, event.attachments)
            return
        name, argument = command
        action = BY_SLASH.get(name)
        if action is None:
            near = nearest(name, BY_SLASH).replace("Did you mean ", "Did you mean /")
            about = f"There is no command /{name}. {near}".strip()
            self.stage.tell(f"{about} /help lists them. // begins a message with a slash.")
            self.prompt.put(event.text)
        elif argument and not action.argument:
            self.stage.tell(f"/{name} takes nothing after it.")
        else:
            self.perform(action, argument)

    def on_prompt_suspended(self) -> None:
        """Stop, or say why that is impossible here."""
        self.perform(BY_ID["suspend"])

    def perform(self, action: Action, argument: str = "") -> None:
        """Do it, or say why it cannot be done now."""
        reason = action.unavailable(self)
        if reason:
            self.stage.flash(f"{action.title}: {reason}")
        else:
            action.run(self, argument)

    def action_act(self, action: str, only_empty: bool = False) -> None:
        """Run an action of the registry."""
        if action != "stop":
            self.letters.forget()
        self.perform(BY_ID[action])

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys for an empty prompt go to the prompt while it has text."""
        if action == "act" and parameters[1:] == (True,):
            return not self.prompt.text
        return super().check_action(action, parameters)

    @property
    def settings(self) -> Settings:
        """The settings that hold."""
        return self._follower.settings

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
        """Run an action from the palette; one that needs an argument, having no key, is begun in the prompt."""
        chosen = BY_ID[action]
        if chosen.argument and not chosen.keys:
            self.input.begin(f"/{chosen.slash} ")
        else:
            self.perform(chosen)

    # ------------------------------------------------------------------------------------------------ actions

    def stop(self) -> None:
        """Stop the reply; else close what is open, take a waiting message back, or go to the prompt. Never anywhere else."""
        if self.letters.forget():
            return
        if self.find.close() or self.input.leave() or self.branching.leave() or self.session.stop():
            return
        if self.stats.close_over() or self.inspection.close():
            return
        if self.focused is not self.prompt:
            self.prompt.focus()
        elif self.session.queue:
            self.input.edit_waiting()
        else:
            self.clear_selection()
            self.prompt.move_cursor(self.prompt.cursor_location)

    def interrupt(self) -> None:
        """Copy a selection, else stop, else clear the prompt; twice quits."""
        selected = self.prompt.selected_text or self.get_selected_text()
        if selected:
            self.copying.copy(selected, "the selection")
            self.clear_selection()
            return
        if self.input.listing:
            self.input.leave()
            return
        now = monotonic()
        if now - self._pressed < _TWICE:
            self.quit()
            return
        self._pressed = now
        if self.session.stop():
            self.stage.flash("Stopped; ctrl+c again quits")
        elif self.prompt.text or self.prompt.attachments:
            self.prompt.put("", ())
        else:
            self.stage.flash("ctrl+c again quits")

    def new_chat(self) -> None:
        """Begin again."""
        self.session.new_chat()
        self.stage.forget()
        loaded = self.session.loaded
        self.transcript.clear(loaded.title if loaded else self.session.options.model.model)
        self.prompt.focus()
        self.stage.status_changed()

    def show_palette(self) -> None:
        """Open the command palette."""
        self.app.action_command_palette()

    def show_help(self, words: str = "") -> None:
        """Open the help screen, with words to look for."""
        from outrider.app.chat.help import HelpScreen, place_of
        from outrider.app.chat.helptext import sections

        reasons = {action.id: action.unavailable(self) for action in self.keymap.actions}
        told = sections(self.keymap.actions, place_of(self.focused), reasons)
        self.app.push_screen(HelpScreen(told, self.keymap.keys_of("help"), words))

    def write(self) -> None:
        """Back to the prompt."""
        self.prompt.focus()

    def show_leader(self) -> None:
        """Show what single letters do, and do it."""
        from outrider.app.chat.leader import LeaderScreen

        idle = {action.id for action in self.keymap.actions if action.unavailable(self)}
        leader = LeaderScreen(self.keymap.actions, idle)

        def gone(chosen: str | None) -> None:
            if leader.typed:
                self.letters.type(leader.typed)
            elif chosen:
                self.pick(chosen)

        self.app.push_screen(leader, gone)

    def quit(self) -> None:
        """Leave, at once unless a download or a training runs."""
        if not (self.models.quit(self.app.exit) or self.training.quit(self.app.exit)):
            self.app.exit()


async def _warm_up() -> None:
    """Import what the first reply and the palette need, beside the typing."""
    loop = asyncio.get_running_loop()
    for name in _LATER:
        await loop.run_in_executor(None, importlib.import_module, name)
