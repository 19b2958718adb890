"""Who drafts."""

from __future__ import annotations

from outrider.app.chat.actions.action import Action
from outrider.app.chat.compare.room import engine_free, saved_races, verifiable
from outrider.app.chat.input import offers

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
        candidates=offers.drafters,
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
    Action(
        "compare",
        "Compare drafters",
        "Let two or three drafters, or none, answer the same prompt one after the other and see it again as a race",
        lambda screen, words: screen.comparing.show(words),
        keys=("f7",),
        slash="compare",
        argument="saved race",
        candidates=saved_races,
        group="Drafting",
        leader="c",
        unavailable=engine_free,
    ),
    Action(
        "verify",
        "Verify the reply",
        "Write the focused reply, else the last one, once more without drafts and say whether it is the same",
        lambda screen, _: screen.comparing.verify(),
        slash="verify",
        group="Drafting",
        leader="V",
        unavailable=verifiable,
    ),
)
