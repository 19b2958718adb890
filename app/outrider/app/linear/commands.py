"""Which actions work in lines, and those that do it in their own way there. All others are the screen's alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.app.chat.actions import ACTIONS
from outrider.app.chat.compare.runner import Asker, Stopped
from outrider.app.chat.compare.verifying import Verifier, last_turn, messages_before, refusal
from outrider.app.chat.context import is_full, why_not_carry_over
from outrider.app.chat.helptext import having, sections
from outrider.app.chat.input.attach import Refused as NoText
from outrider.app.chat.input.attach import estimate, label, read_file
from outrider.app.chat.problem import Problem
from outrider.app.chat.settings import Refused
from outrider.app.chat.stats.figures import gather
from outrider.app.chat.stats.why import explained
from outrider.app.chat.talk import Turn
from outrider.app.client import EngineError
from outrider.app.config import FIELDS
from outrider.app.store.problems import StoreError
from outrider.app.store.records import short

if TYPE_CHECKING:
    from outrider.app.linear.desk import Desk

_LISTED = 12  # chats


def _help(desk: Desk, words: str) -> None:
    if words:
        found = having(sections(), words)
        for section in found:
            for line in section.lines:
                desk.stage.line(": ".join(filter(None, (line.command or line.keys, line.words))))
        if not found:
            desk.stage.line(f"Nothing in the help has all of: {words}.")
        return
    for action in ACTIONS:
        if action.id in HERE and action.slash:
            desk.stage.line(f"{f'/{action.slash} {action.argument}'.rstrip()}: {action.help}.")
    desk.stage.line("// begins a message with a slash. A backslash at the end of a line makes another line.")


def _chats(desk: Desk, words: str) -> None:
    desk.stage.spawn(_list_chats(desk) if not words else _open_chat(desk, words))


async def _list_chats(desk: Desk) -> None:
    try:
        rows = await desk.session.keeper.ask(lambda store: store.chats(_LISTED))
    except StoreError as error:
        desk.stage.line(error.message)
        return
    for row in rows:
        when = f"{datetime.fromtimestamp(row.updated):%Y-%m-%d %H:%M}"
        desk.stage.line(
            f"{short(row.id)}: {row.title}, {when}, {row.messages} message{'s' if row.messages != 1 else ''}."
        )
    desk.stage.line("/chats and the letters before a title opens that chat." if rows else "There is no chat yet.")


async def _open_chat(desk: Desk, words: str) -> None:
    try:
        name = await desk.session.keeper.ask(lambda store: store.resolve(words))
    except StoreError as error:
        desk.stage.line(f"{error.message} {error.hint}".strip())
        return
    await desk.session.open_chat(name)


def _settings(desk: Desk, words: str) -> None:
    path, _, value = words.partition(" ")
    if path in FIELDS and value.strip():
        try:
            desk.stage.line(desk.board.put(path, value.strip()))
        except Refused as error:
            desk.stage.line(str(error))
    elif path in FIELDS:
        for name, text in desk.board.row(path).about(desk.board.model):
            if name != "m":
                desk.stage.line(f"{name}: {text}")
    else:
        rows = desk.board.rows(words)
        for row in rows:
            desk.stage.line(f"{row.path}: {row.words}.")
        told = "/settings and a name tells more; a value after it sets it." if rows else f"No setting has: {words}."
        desk.stage.line(told)


def _thought(desk: Desk, words: str) -> None:
    reply = desk.session.chat.last_reply()
    if reply is None or not reply.thought.begun:
        desk.stage.line("The last reply began with no thought.")
    else:
        desk.stage.line(reply.thought.text.strip())


def _last(desk: Desk) -> Turn | None:
    """The last message that was not refused."""
    return next((turn for turn in reversed(desk.session.chat.turns) if not turn.failed), None)


def _edit(desk: Desk, words: str) -> None:
    turn = _last(desk)
    if turn is None or not turn.text:
        desk.stage.line("Nothing was said here yet.")
        return
    desk.editing, desk.stage.typed = turn, turn.text
    desk.stage.line("The next message takes the place of the last one, which was:")
    desk.stage.line(turn.text)


def _regenerate(desk: Desk, words: str) -> None:
    turn = _last(desk)
    if turn is None or not turn.text:
        desk.stage.line("Nothing was said here yet.")
    else:
        desk.session.branches.regenerate(turn)


def _keep_going(desk: Desk, words: str) -> None:
    turn = _last(desk)
    if turn is not None and turn.reply is not None and is_full(turn.reply, desk.session.branches.room):
        desk.stage.line("The context is full. /new begins a new chat, /carry-over one with the newest turns.")
    elif turn is None or desk.session.branches.can_go_on(turn) is None:
        desk.stage.line("There is no reply that was cut.")
    else:
        desk.session.branches.keep_going(turn)


def _carry_over(desk: Desk, words: str) -> None:
    if reason := why_not_carry_over(desk.session):
        desk.stage.line(f"Not now: {reason}.")
    else:
        desk.stage.spawn(_carried_over(desk))


async def _carried_over(desk: Desk) -> None:
    try:
        desk.stage.line(await desk.session.branches.carry_over())
    except StoreError as error:
        desk.stage.line(f"{error.message} {error.hint}".strip())


def _choose(by: int) -> Own:
    """Another branch at the last fork."""

    def choose(desk: Desk, words: str) -> None:
        tree = desk.session.chat.tree
        path = tree.path(desk.session.chat.last_node() or "")
        node = next((knot.node for knot in reversed(path) if len(tree.siblings(knot.node)) > 1), "")
        siblings = tree.siblings(node) if node else []
        place = siblings.index(node) + by if node else -1
        if 0 <= place < len(siblings):
            desk.stage.spawn(desk.session.branches.choose(siblings[place]))
        else:
            desk.stage.line("There is no other branch in this direction." if node else "There are no branches here.")

    return choose


def _delete(desk: Desk, words: str) -> None:
    node = desk.session.chat.last_node()
    if words == "message" and node:
        desk.stage.line("The last message is deleted; /undo brings it back.")
        desk.stage.spawn(desk.session.branches.delete(node))
    elif words:
        desk.stage.line("/delete deletes this chat, /delete message the last message.")
    else:
        desk.shelf.delete()


def _file(desk: Desk, path: str) -> None:
    if not path:
        desk.stage.line("/file needs a path after it.")
        return
    try:
        found = read_file(Path(path).expanduser())
    except NoText as error:
        desk.stage.line(f"{error.message} {error.hint}".strip())
        return
    desk.attached.append(found)
    desk.stage.line(f"{label(found)}, about {estimate(found.text):,} tokens, goes with the next message.")


def _model(desk: Desk, name: str) -> None:
    if reason := desk.models.busy():
        desk.stage.line(f"Not now: {reason}.")
    elif name:
        desk.models.choose(name)
    else:
        desk.stage.line(f"This chat uses {desk.models.loaded or 'no model'}. `outrider models list` names them.")


def _why(desk: Desk, words: str) -> None:
    reply = desk.session.chat.last_reply()
    desk.stage.line(explained(gather(desk.session, reply, desk.tallies.get(reply) if reply else None)))


def _verify(desk: Desk, words: str) -> None:
    session, turn = desk.session, last_turn(desk.session.chat)
    reason = refusal(turn, session.settings()) if session.loaded is not None else "no model is loaded"
    if session.loaded is None or reason:
        desk.stage.line(f"Not now: {reason}.")
        return
    assert turn is not None and turn.reply is not None
    settings = turn.reply.settings or session.settings()
    desk.asker = Asker(session.client)
    messages = messages_before(session.chat, turn)
    desk.stage.line("Writing the reply once more without drafts.")
    desk.stage.spawn(_verified(desk, Verifier(desk.asker, turn, messages, settings, session.loaded)))


async def _verified(desk: Desk, verifier: Verifier) -> None:
    try:
        desk.stage.line((await verifier.run()).words())
    except Stopped:
        desk.stage.line("The check was stopped.")
    except EngineError as error:
        desk.stage.complain(Problem.of("The check failed", error))
    finally:
        desk.asker = None


def _restart(desk: Desk, words: str) -> None:
    desk.stage.spawn(desk.session.restart())


Own = Callable[["Desk", str], None]
HERE: dict[str, Own | None] = {
    "stop": None,
    "new": None,
    "rename": None,
    "export": None,
    "undo": None,
    "system": None,
    "set": None,
    "think": None,
    "persona": None,
    "quit": None,
    "drafter": None,
    "drafting": None,
    "attach": _file,
    "edit": _edit,
    "regenerate": _regenerate,
    "keep_going": _keep_going,
    "carry_over": _carry_over,
    "larger_context": None,
    "older_branch": _choose(-1),
    "newer_branch": _choose(1),
    "delete": _delete,
    "thought": _thought,
    "why": _why,
    "verify": _verify,
    "chats": _chats,
    "model": _model,
    "settings": _settings,
    "restart": _restart,
    "help": _help,
}
"""None: as the registry has it."""
