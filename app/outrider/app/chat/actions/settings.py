"""Settings of the user's own file."""

from __future__ import annotations

from outrider.app.chat.actions.action import Action
from outrider.app.chat.input import offers

ACTIONS: tuple[Action, ...] = (
    Action(
        "settings",
        "Settings",
        "Look at every setting and change it; after a name a value sets it at once",
        lambda screen, words: screen.board.show(words),
        keys=("f9",),
        slash="settings",
        candidates=offers.settings,
        argument="name value",
        group="View",
        leader="S",
    ),
)
