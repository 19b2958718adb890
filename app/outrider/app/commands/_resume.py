"""Which chat goes on, and with what: what was typed comes first, then what the chat was held with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from outrider.app.options import EngineOptions
from outrider.app.render import WrongUsage
from outrider.app.store.chats import Store
from outrider.app.store.records import Chat

_DRAFTER = ("drafter", "weights", "drafter_option", "draft_tokens")


def find_chat(word: str | None, *, last: bool, private: bool) -> Chat | None:
    """The chat that `--continue` or `--resume` mean, None without them. Raises `Failure` if there is none."""
    if word is not None and last:
        raise WrongUsage("--continue and --resume exclude each other.", "--resume last is the same as --continue.")
    if word is None and not last:
        return None
    if private:
        raise WrongUsage("--private begins a chat of its own.", "Leave --continue and --resume out.")
    with Store.open() as store:
        return store.load(store.resolve(word or "last")).chat


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
