"""What is done with the prompt before it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.app.chat.actions.action import Action

if TYPE_CHECKING:
    from outrider.app.chat.screen import ChatScreen


def _no_attachments(screen: ChatScreen) -> str:
    return "" if screen.prompt.attachments else "nothing is attached"


def _none_wait(screen: ChatScreen) -> str:
    return "" if screen.session.queue else "no message waits"


ACTIONS: tuple[Action, ...] = (
    Action(
        "attach",
        "Attach a file",
        "Send a text file with the next message; @ and its name in the prompt do the same",
        lambda screen, path: screen.input.attach(path),
        slash="file",
        argument="path",
        group="Prompt",
        leader="@",
    ),
    Action(
        "paste",
        "Paste as attachment",
        "What is pasted next goes with the message instead of into it; a long paste does so by itself",
        lambda screen, _: screen.input.fold_next(),
        slash="paste",
        group="Prompt",
        leader="P",
    ),
    Action(
        "attachments",
        "Attachments",
        "Go to what is attached: delete removes, enter unfolds a paste into the prompt",
        lambda screen, _: screen.input.choose_attachment(),
        slash="attachments",
        group="Prompt",
        unavailable=_no_attachments,
    ),
    Action(
        "editor",
        "Edit in your editor",
        "Edit the prompt in the editor that VISUAL or EDITOR names",
        lambda screen, _: screen.input.edit_outside(),
        keys=("ctrl+g",),
        slash="editor",
        group="Prompt",
        leader="$",
    ),
    Action(
        "search_prompts",
        "Search what you sent",
        "Find an earlier prompt, of any chat, by words in it",
        lambda screen, _: screen.input.search(),
        keys=("ctrl+r",),
        slash="prompts",
        group="Prompt",
        leader="/",
    ),
    Action(
        "waiting",
        "Waiting messages",
        "Messages that wait for the model, in their order: enter edits one, delete removes it",
        lambda screen, _: screen.input.show_waiting(),
        slash="waiting",
        group="Prompt",
        unavailable=_none_wait,
    ),
)
