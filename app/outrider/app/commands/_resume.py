"""Which chat goes on, and with what: what was typed comes first, then what the chat was held with.

A chat that another window has open is never opened a second time: `--continue` takes the newest of the others, and
`--resume` with its id begins a copy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from outrider.app.options import EngineOptions
from outrider.app.render import WrongUsage
from outrider.app.store.chats import Store
from outrider.app.store.exports import one_line
from outrider.app.store.records import Chat, copied, not_copied

_DRAFTER = ("drafter", "weights", "drafter_option", "draft_tokens")


_ELSEWHERE = "is open in another window"


def find_chat(word: str | None, *, last: bool, private: bool) -> tuple[Chat | None, str]:
    """The chat that `--continue` or `--resume` mean, None without them, and what is to be said of the choice.

    None too if that is in use and there is nothing else to go on with. Raises `Failure` if there is no such chat."""
    if word is not None and last:
        raise WrongUsage("--continue and --resume exclude each other.", "--resume last is the same as --continue.")
    if word is None and not last:
        return None, ""
    if private:
        raise WrongUsage("--private begins a chat of its own.", "Leave --continue and --resume out.")
    with Store.open() as store:
        chat, told = _find(store, word or "last")
        return chat, " ".join(filter(None, (store.repaired, told)))


def _find(store: Store, word: str) -> tuple[Chat | None, str]:
    name = store.resolve(word)
    if word.lower() == "last":
        return _newest(store)
    if not store.in_use(name):
        return store.load(name).chat, ""
    title = one_line(store.load(name).chat.title)
    copy = store.copy(name)
    return (store.load(copy).chat, copied(title)) if copy else (None, not_copied(title))


def _newest(store: Store) -> tuple[Chat | None, str]:
    """The chat last written in that no other window has open."""
    rows = store.chats()
    free = next((row for row in rows if not row.in_use), None)
    newer = rows[: rows.index(free)] if free is not None else rows
    titles = ", ".join(f"“{one_line(row.title)}”" for row in newer[:3]) + (" …" if len(newer) > 3 else "")
    verb = _ELSEWHERE if len(newer) == 1 else "are open in other windows"
    if free is None:
        return None, f"{titles} {verb}, and there is no other chat: this is a new one."
    told = f"{titles} {verb}; this is the newest chat that is not." if newer else ""
    return store.load(free.id).chat, told


def resumed(options: EngineOptions, think: bool | None, chat: Chat) -> tuple[EngineOptions, bool | None]:
    """The options and the wish to think where they were asked for now, else those of the chat."""
    kept = chat.settings

    def asked(name: str) -> bool:
        typed = click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE
        return typed or options.insisted(name)

    def mixed(new: Any, old: Any) -> Any:
        return msgspec.structs.replace(
            old, **{name: getattr(new, name) for name in new.__struct_fields__ if asked(name)}
        )

    other = asked("model")  # its choices belong to another model
    changed = replace(
        options,
        model=options.model if other else mixed(options.model, kept.model),
        drafter=options.drafter if other or any(map(asked, _DRAFTER)) else kept.drafter,
        sampling=mixed(options.sampling, kept.sampling),
        system=options.system if asked("system") else chat.system,
        rule=options.rule if asked("rule") else kept.rule,
    )
    return changed, think if asked("think") else kept.think
