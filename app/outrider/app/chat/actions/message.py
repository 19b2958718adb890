"""What is done with one message."""

from __future__ import annotations

from outrider.app.chat.actions.action import Action

ACTIONS: tuple[Action, ...] = (
    Action(
        "copy",
        "Copy the reply",
        "Copy the focused reply, else the last one, as the exact Markdown",
        lambda screen, _: screen.messages.copy(),
        keys=("ctrl+y",),
        slash="copy",
        on_message=("c",),
        leader="y",
    ),
    Action(
        "thought",
        "Show or fold the thought",
        "Unfold what the model thought before the focused reply, else before the last one, or fold it",
        lambda screen, _: screen.messages.fold_thought(),
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
        lambda screen, _: screen.messages.go(-1),
        keys=("alt+up",),
        group="View",
        leader="k",
    ),
    Action(
        "next_message",
        "Reply after",
        "Focus the reply after; behind the last one comes the prompt",
        lambda screen, _: screen.messages.go(1),
        keys=("alt+down",),
        group="View",
        leader="j",
    ),
)
