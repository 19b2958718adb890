"""What drafting brings, in figures."""

from __future__ import annotations

from outrider.app.chat.actions.action import Action
from outrider.app.chat.input import offers

ACTIONS: tuple[Action, ...] = (
    Action(
        "stats",
        "Figures",
        "Show the figures of drafting: in the status line alone, as a strip above the prompt, or as a panel",
        lambda screen, word: screen.stats.choose(word),
        keys=("f5",),
        slash="stats",
        candidates=lambda screen: offers.words("chip", "strip", "panel"),
        argument="chip, strip or panel",
        footer="stats",
        group="View",
        leader="v",
    ),
    Action(
        "inspector",
        "Inspect tokens",
        "Show for each token of the focused reply, else of the last one, which pass brought it and what was proposed there",
        lambda screen, _: screen.inspection.toggle(),
        keys=("f8",),
        slash="inspect",
        group="View",
        on_message=("i",),
        letter_word="inspect",
        leader="I",
        unavailable=lambda screen: "" if screen.inspection.able else "there is no reply yet",
    ),
    Action(
        "history",
        "How drafters did",
        "Show how each drafter did on each model in all chats, week by week",
        lambda screen, _: screen.past.show(),
        slash="history",
        group="Drafting",
        leader="H",
    ),
    Action(
        "why",
        "Why this fast",
        "Say what drafting brings in the last reply, what costs most, and what is done about it",
        lambda screen, _: screen.stats.why(),
        slash="why",
        group="Drafting",
        leader="Y",
    ),
)
