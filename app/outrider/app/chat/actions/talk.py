"""What is done with the chat as a whole: say, stop, name, keep, leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.app.chat.actions.action import Action
from outrider.app.chat.input import offers
from outrider.app.chat.terminal import has_job_control

if TYPE_CHECKING:
    from outrider.app.chat.screen import ChatScreen


def _stays(screen: ChatScreen) -> str:
    return "" if screen.app.can_stop and has_job_control() else "no shell here could bring the chat back"  # type: ignore[attr-defined]


ACTIONS: tuple[Action, ...] = (
    Action(
        "stop",
        "Stop the reply",
        "Stop the running reply and keep its text; else close what is open, take a waiting message back, or go to the prompt",
        lambda screen, _: screen.stop(),
        keys=("escape",),
        slash="stop",
    ),
    Action(
        "interrupt",
        "Interrupt",
        "Copy the selection; else stop the reply; else clear the prompt; twice within 2 s quits",
        lambda screen, _: screen.interrupt(),
        keys=("ctrl+c",),
    ),
    Action(
        "new",
        "New chat",
        "Begin again with an empty transcript",
        lambda screen, _: screen.new_chat(),
        keys=("ctrl+n",),
        slash="new",
        changes=True,
        leader="n",
    ),
    Action(
        "rename",
        "Rename the chat",
        "Give this chat another title",
        lambda screen, title: screen.shelf.rename(title),
        slash="rename",
        argument="TITLE",
        leader="r",
    ),
    Action(
        "export",
        "Export the chat",
        "Write this chat to a file: a name ending in .md, .json, .html or .svg, or one of these words",
        lambda screen, words: screen.shelf.export(words),
        slash="export",
        candidates=offers.formats,
        argument="file or format",
        leader="x",
    ),
    Action(
        "delete",
        "Delete the chat",
        "Delete this chat and begin another; `/delete message` deletes one message alone; /undo brings either back",
        lambda screen, words: screen.branching.delete_either(words),
        slash="delete",
        changes=True,
        candidates=lambda screen: offers.words("message"),
        argument="message",
    ),
    Action(
        "undo",
        "Undo deleting",
        "Bring back the chat, or the messages, that were deleted last",
        lambda screen, _: screen.shelf.undo(),
        slash="undo",
        changes=True,
        leader="z",
    ),
    Action(
        "system",
        "System prompt",
        "Set the system prompt for what comes next; alone it shows the current one",
        lambda screen, text: screen.choices.system(text),
        slash="system",
        argument="text",
        leader="s",
    ),
    Action(
        "set",
        "Sampling option",
        "Set an option such as `temperature 0.7`; alone it shows all of them",
        lambda screen, words: screen.choices.sampling(words),
        slash="set",
        candidates=offers.sampling,
        argument="option value",
        leader="e",
    ),
    Action(
        "think",
        "Thinking on or off",
        "Have the model think before it answers, or not, where it lets you choose; alone it shows which",
        lambda screen, word: screen.choices.thinking(word),
        slash="think",
        candidates=offers.thinking,
        argument="on, off or auto",
    ),
    Action(
        "persona",
        "Persona",
        "Take on a persona of the settings: system prompt, sampling, drafter; alone it lists them",
        lambda screen, name: screen.choices.persona(name),
        slash="persona",
        candidates=offers.personas,
        argument="name",
        leader="u",
    ),
    Action(
        "suspend",
        "Suspend",
        "Back to the shell until its `fg`, with a reply going on meanwhile; ctrl+z on an empty prompt does the same",
        lambda screen, _: screen.app.stop_job(),  # type: ignore[attr-defined]
        slash="suspend",
        unavailable=_stays,
    ),
    Action(
        "quit",
        "Quit",
        "Leave the chat and end the engine",
        lambda screen, _: screen.quit(),
        keys=("ctrl+q",),
        slash="quit",
        changes=True,
        empty_prompt=("ctrl+d",),
        leader="q",
    ),
)
