"""What opens another screen."""

from __future__ import annotations

from outrider.app.chat.actions.action import Action

ACTIONS: tuple[Action, ...] = (
    Action(
        "chats",
        "Chats so far",
        "Look through all chats, open or delete one",
        lambda screen, _: screen.shelf.show(),
        keys=("f6",),
        slash="chats",
        leader="b",
    ),
    Action(
        "leader",
        "Letters for everything",
        "Show what single letters do, then press one",
        lambda screen, _: screen.show_leader(),
        keys=("ctrl+o",),
        group="View",
    ),
    Action(
        "palette",
        "Command palette",
        "Find any action by name",
        lambda screen, _: screen.show_palette(),
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
        lambda screen, _: screen.show_help(),
        keys=("f1",),
        slash="help",
        footer="help",
        group="View",
        leader="?",
    ),
)
