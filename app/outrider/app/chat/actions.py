"""Everything the chat can do, once: keys, palette, slash commands, help and footer all derive from this list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Deck(Protocol):
    """What the actions work on: the chat screen."""

    def stop(self) -> None:
        """Stop the reply, or take a waiting message back, or go to the last reply."""
        ...

    def interrupt(self) -> None:
        """Copy a selection, else stop, else clear the prompt; twice quits."""
        ...

    def cycle_drafter(self, by: int) -> None:
        """Go `by` drafters further."""
        ...

    def choose_drafter(self, name: str) -> None:
        """Switch to a drafter by name, or list them."""
        ...

    def toggle_drafting(self) -> None:
        """Drafting off or on."""
        ...

    def toggle_marks(self) -> None:
        """Marks on or off."""
        ...

    def fold_thought(self) -> None:
        """Fold or unfold the thought of the focused or the last reply."""
        ...

    def change_thinking(self, word: str) -> None:
        """Ask for thinking or for none, or show which."""
        ...

    def new_chat(self) -> None:
        """Begin again."""
        ...

    def show_chats(self) -> None:
        """Choose one of the chats so far."""
        ...

    def rename_chat(self, title: str) -> None:
        """Give the chat another title."""
        ...

    def export_chat(self, words: str) -> None:
        """Write the chat to a file, by name or format."""
        ...

    def delete_chat(self) -> None:
        """Delete the chat."""
        ...

    def undo(self) -> None:
        """Bring back what was deleted last."""
        ...

    def copy_reply(self) -> None:
        """Copy the focused or the last reply."""
        ...

    def show_palette(self) -> None:
        """Open the command palette."""
        ...

    def show_help(self) -> None:
        """Open the help screen."""
        ...

    def scroll(self, where: str) -> None:
        """Scroll the transcript: `up`, `down`, `home` or `end`."""
        ...

    def change_system(self, text: str) -> None:
        """Set or show the system prompt."""
        ...

    def change_sampling(self, words: str) -> None:
        """Set or show sampling options."""
        ...

    def change_theme(self, name: str) -> None:
        """Another theme by name; none means dark or light."""
        ...

    def change_persona(self, name: str) -> None:
        """Take on a persona of the settings, or list them."""
        ...

    def go_to_message(self, by: int) -> None:
        """Focus the reply `by` places further."""
        ...

    def write(self) -> None:
        """Back to the prompt."""
        ...

    def show_leader(self) -> None:
        """Show what single letters do, and do it."""
        ...

    def quit(self) -> None:
        """Leave."""
        ...


@dataclass(frozen=True, slots=True)
class Action:
    """One thing a user can do.

    `slash` is its command without the slash, `argument` what may follow it; an argument in capitals must. `footer` is its
    word in the status line. `on_message` letters work while a reply has the focus, `leader` after the leader key,
    `empty_prompt` keys only on an empty prompt. A keymap replaces `keys` and `on_message`.
    """

    id: str
    title: str
    help: str
    run: Callable[[Deck, str], None]
    keys: tuple[str, ...] = ()
    slash: str = ""
    argument: str = ""
    footer: str = ""
    group: str = "Chat"
    on_message: tuple[str, ...] = ()
    empty_prompt: tuple[str, ...] = ()
    leader: str = ""

    @property
    def needs_argument(self) -> bool:
        """Whether it does nothing without one."""
        return self.argument.isupper()


ACTIONS: tuple[Action, ...] = (
    Action(
        "stop",
        "Stop the reply",
        "Stop the running reply and keep its text; with none, take a waiting message back or go to the last reply",
        lambda deck, _: deck.stop(),
        keys=("escape",),
        slash="stop",
    ),
    Action(
        "interrupt",
        "Interrupt",
        "Copy the selection; else stop the reply; else clear the prompt; twice within 2 s quits",
        lambda deck, _: deck.interrupt(),
        keys=("ctrl+c",),
    ),
    Action(
        "new",
        "New chat",
        "Begin again with an empty transcript",
        lambda deck, _: deck.new_chat(),
        keys=("ctrl+n",),
        slash="new",
        leader="n",
    ),
    Action(
        "chats",
        "Chats so far",
        "Look through all chats, open or delete one",
        lambda deck, _: deck.show_chats(),
        keys=("f6",),
        slash="chats",
        leader="b",
    ),
    Action(
        "rename",
        "Rename the chat",
        "Give this chat another title",
        lambda deck, title: deck.rename_chat(title),
        slash="rename",
        argument="TITLE",
        leader="r",
    ),
    Action(
        "export",
        "Export the chat",
        "Write this chat to a file: a name ending in .md, .json, .html or .svg, or one of these words",
        lambda deck, words: deck.export_chat(words),
        slash="export",
        argument="file or format",
        leader="x",
    ),
    Action(
        "delete",
        "Delete the chat",
        "Delete this chat and begin another; /undo brings it back until the next start",
        lambda deck, _: deck.delete_chat(),
        slash="delete",
    ),
    Action(
        "undo",
        "Undo deleting",
        "Bring back the chat that was deleted last",
        lambda deck, _: deck.undo(),
        slash="undo",
        leader="z",
    ),
    Action(
        "copy",
        "Copy the reply",
        "Copy the focused reply, else the last one, as the exact Markdown",
        lambda deck, _: deck.copy_reply(),
        keys=("ctrl+y",),
        slash="copy",
        on_message=("c",),
        leader="y",
    ),
    Action(
        "system",
        "System prompt",
        "Set the system prompt for what comes next; alone it shows the current one",
        lambda deck, text: deck.change_system(text),
        slash="system",
        argument="text",
        leader="s",
    ),
    Action(
        "set",
        "Sampling option",
        "Set an option such as `temperature 0.7`; alone it shows all of them",
        lambda deck, words: deck.change_sampling(words),
        slash="set",
        argument="option value",
        leader="e",
    ),
    Action(
        "think",
        "Thinking on or off",
        "Have the model think before it answers, or not, where it lets you choose; alone it shows which",
        lambda deck, word: deck.change_thinking(word),
        slash="think",
        argument="on, off or auto",
    ),
    Action(
        "persona",
        "Persona",
        "Take on a persona of the settings: system prompt, sampling, drafter; alone it lists them",
        lambda deck, name: deck.change_persona(name),
        slash="persona",
        argument="name",
        leader="u",
    ),
    Action(
        "next_drafter",
        "Next drafter",
        "Switch to the next drafter, also in mid-reply",
        lambda deck, _: deck.cycle_drafter(1),
        keys=("f2",),
        footer="drafter",
        group="Drafting",
        leader="d",
    ),
    Action(
        "previous_drafter",
        "Previous drafter",
        "Switch to the drafter before",
        lambda deck, _: deck.cycle_drafter(-1),
        keys=("shift+f2",),
        group="Drafting",
        leader="D",
    ),
    Action(
        "drafter",
        "Choose a drafter",
        "Switch to a drafter by name; alone it lists them",
        lambda deck, name: deck.choose_drafter(name),
        slash="drafter",
        argument="name",
        group="Drafting",
        leader="w",
    ),
    Action(
        "drafting",
        "Drafting on or off",
        "Switch drafting off or back on, also in mid-reply",
        lambda deck, _: deck.toggle_drafting(),
        keys=("f3",),
        slash="drafting",
        footer="on/off",
        group="Drafting",
        leader="o",
    ),
    Action(
        "marks",
        "Marks on or off",
        "Show or hide which words came early, in the whole transcript",
        lambda deck, _: deck.toggle_marks(),
        keys=("f4",),
        slash="marks",
        footer="marks",
        group="View",
        leader="h",
    ),
    Action(
        "thought",
        "Show or fold the thought",
        "Unfold what the model thought before the focused reply, else before the last one, or fold it",
        lambda deck, _: deck.fold_thought(),
        keys=("ctrl+l",),
        slash="thought",
        group="View",
        on_message=("t",),
        leader="l",
    ),
    Action(
        "previous_message",
        "Reply before",
        "Focus the reply before; letters then act on it",
        lambda deck, _: deck.go_to_message(-1),
        keys=("alt+up",),
        group="View",
        leader="k",
    ),
    Action(
        "next_message",
        "Reply after",
        "Focus the reply after; behind the last one comes the prompt",
        lambda deck, _: deck.go_to_message(1),
        keys=("alt+down",),
        group="View",
        leader="j",
    ),
    Action(
        "prompt",
        "To the prompt",
        "Give the focus back to the prompt",
        lambda deck, _: deck.write(),
        group="View",
        leader="i",
    ),
    Action(
        "page_up",
        "Scroll up",
        "Scroll the transcript; the prompt keeps the focus",
        lambda deck, _: deck.scroll("up"),
        keys=("pageup",),
        group="View",
    ),
    Action(
        "page_down",
        "Scroll down",
        "Scroll the transcript down",
        lambda deck, _: deck.scroll("down"),
        keys=("pagedown",),
        group="View",
    ),
    Action(
        "top",
        "To the beginning",
        "Scroll to the first message",
        lambda deck, _: deck.scroll("home"),
        keys=("ctrl+home",),
        group="View",
        leader="g",
    ),
    Action(
        "bottom",
        "To the end",
        "Scroll to the end and follow what comes",
        lambda deck, _: deck.scroll("end"),
        keys=("ctrl+end",),
        group="View",
        leader="G",
    ),
    Action(
        "theme",
        "Theme",
        "Switch to a theme by name; alone it goes between dark and light",
        lambda deck, name: deck.change_theme(name),
        slash="theme",
        argument="name",
        group="View",
        leader="t",
    ),
    Action(
        "leader",
        "Letters for everything",
        "Show what single letters do, then press one",
        lambda deck, _: deck.show_leader(),
        keys=("ctrl+o",),
        group="View",
    ),
    Action(
        "palette",
        "Command palette",
        "Find any action by name",
        lambda deck, _: deck.show_palette(),
        keys=("ctrl+p",),
        slash="palette",
        footer="commands",
        group="View",
        leader="p",
    ),
    Action(
        "help",
        "Help",
        "All keys and commands",
        lambda deck, _: deck.show_help(),
        keys=("f1",),
        slash="help",
        footer="help",
        group="View",
        leader="?",
    ),
    Action(
        "quit",
        "Quit",
        "Leave the chat and end the engine",
        lambda deck, _: deck.quit(),
        keys=("ctrl+q",),
        slash="quit",
        empty_prompt=("ctrl+d",),
        leader="q",
    ),
)

BY_ID = {action.id: action for action in ACTIONS}
BY_SLASH = {action.slash: action for action in ACTIONS if action.slash}

PROMPT_KEYS: tuple[tuple[str, str], ...] = (
    ("enter", "Send"),
    ("ctrl+j, \\ enter", "New line; also shift+enter and alt+enter where the terminal tells them from enter"),
    ("up, down", "At the edge of the prompt: earlier messages"),
)


def parse_slash(text: str) -> tuple[str, str] | None:
    """`(name, argument)` of a slash command, None for an ordinary message; two slashes make an ordinary one."""
    if not text.startswith("/") or text.startswith("//"):
        return None
    name, _, argument = text[1:].partition(" ")
    return name.strip(), argument.strip()
