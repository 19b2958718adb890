"""How the transcript looks and where in it one is."""

from __future__ import annotations

from outrider.app.chat.actions.action import Action

ACTIONS: tuple[Action, ...] = (
    Action(
        "marks",
        "Marks on or off",
        "Show or hide which words came early, in the whole transcript",
        lambda screen, _: screen.sight.next_marks(),
        keys=("f4",),
        slash="marks",
        footer="marks",
        group="View",
        leader="h",
    ),
    Action(
        "prompt",
        "To the prompt",
        "Give the focus back to the prompt",
        lambda screen, _: screen.write(),
        group="View",
        leader="i",
    ),
    Action(
        "page_up",
        "Scroll up",
        "Scroll the transcript; the prompt keeps the focus",
        lambda screen, _: screen.sight.scroll("up"),
        keys=("pageup",),
        group="View",
    ),
    Action(
        "page_down",
        "Scroll down",
        "Scroll the transcript down",
        lambda screen, _: screen.sight.scroll("down"),
        keys=("pagedown",),
        group="View",
    ),
    Action(
        "top",
        "To the beginning",
        "Scroll to the first message",
        lambda screen, _: screen.sight.scroll("home"),
        keys=("ctrl+home",),
        group="View",
        leader="g",
    ),
    Action(
        "bottom",
        "To the end",
        "Scroll to the end and follow what comes",
        lambda screen, _: screen.sight.scroll("end"),
        keys=("ctrl+end",),
        group="View",
        leader="G",
    ),
    Action(
        "theme",
        "Theme",
        "Switch to a theme by name; alone it goes between dark and light",
        lambda screen, name: screen.sight.theme(name),
        slash="theme",
        argument="name",
        group="View",
        leader="t",
    ),
)
