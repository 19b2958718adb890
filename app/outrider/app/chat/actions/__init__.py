"""Everything the chat can do, once: keys, palette, slash commands, help and footer all derive from this list."""

from __future__ import annotations

from outrider.app.chat.actions import copying, drafting, figures, input, message, screens, settings, talk, view
from outrider.app.chat.actions.action import Action as Action

ACTIONS: tuple[Action, ...] = (
    *talk.ACTIONS,
    *input.ACTIONS,
    *message.ACTIONS,
    *copying.ACTIONS,
    *drafting.ACTIONS,
    *figures.ACTIONS,
    *view.ACTIONS,
    *screens.ACTIONS,
    *settings.ACTIONS,
)

BY_ID = {action.id: action for action in ACTIONS}
BY_SLASH = {action.slash: action for action in ACTIONS if action.slash}

PROMPT_KEYS: tuple[tuple[str, str], ...] = (
    ("enter", "Send"),
    ("ctrl+j, \\ enter", "New line; also shift+enter and alt+enter where the terminal tells them from enter"),
    ("up, down", "At the edge of the prompt: earlier messages; on an empty one: a message that waits"),
    ("/, @", "Commands and files, offered while you type: tab or enter takes one, esc closes"),
    ("backspace", "At the beginning of the prompt: takes the last attachment away"),
    (
        "shift+tab",
        "To what is attached: delete removes it, enter unfolds a paste into the prompt; else to the last message",
    ),
    ("ctrl+z, ctrl+_", "Undo in the prompt; on an empty one ctrl+z goes back to the shell until its `fg`"),
    ("alt+z", "Redo in the prompt"),
)


def parse_slash(text: str) -> tuple[str, str] | None:
    """`(name, argument)` of a slash command, None for an ordinary message; two slashes make an ordinary one."""
    if not text.startswith("/") or text.startswith("//"):
        return None
    name, _, argument = text[1:].partition(" ")
    return name.strip(), argument.strip()
