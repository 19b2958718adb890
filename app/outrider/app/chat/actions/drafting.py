"""Who drafts."""

from __future__ import annotations

from outrider.app.chat.actions.action import Action

ACTIONS: tuple[Action, ...] = (
    Action(
        "next_drafter",
        "Next drafter",
        "Switch to the next drafter, also in mid-reply",
        lambda screen, _: screen.session.cycle_drafter(1),
        keys=("f2",),
        footer="drafter",
        group="Drafting",
        leader="d",
    ),
    Action(
        "previous_drafter",
        "Previous drafter",
        "Switch to the drafter before",
        lambda screen, _: screen.session.cycle_drafter(-1),
        keys=("shift+f2",),
        group="Drafting",
        leader="D",
    ),
    Action(
        "drafter",
        "Choose a drafter",
        "Switch to a drafter by name; alone it lists them",
        lambda screen, name: screen.choices.drafter(name),
        slash="drafter",
        argument="name",
        group="Drafting",
        leader="w",
    ),
    Action(
        "drafting",
        "Drafting on or off",
        "Switch drafting off or back on, also in mid-reply",
        lambda screen, _: screen.session.toggle_drafting(),
        keys=("f3",),
        slash="drafting",
        footer="on/off",
        group="Drafting",
        leader="o",
    ),
)
