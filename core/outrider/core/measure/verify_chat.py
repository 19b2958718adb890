"""The chat of `outrider verify`: answers behind what earlier turns left in the cache, against plain ones that reuse nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from outrider.core.base.protocol import BenchPrompt, DrafterChoice, Message, Report

TURNS, TOKENS = 3, 24  # of the chat, and of each of its answers at most

Flow = Literal["turn", "regenerate", "edit"]
Ask = Callable[[list[Message], DrafterChoice], Report]


class ChatTally(msgspec.Struct, kw_only=True):
    """One drafter, or plain decoding, in one kind of answer."""

    drafter: str
    flow: Flow
    answers: int = 0
    identical: int = 0
    near_ties: int = 0
    differences: int = 0
    unchecked: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer of the chat: what it is made behind, and what plain decoding says there that reuses nothing."""

    flow: Flow
    turn: int
    messages: list[Message]
    want: list[int]


def chat(prompts: Sequence[BenchPrompt], fresh: Callable[[list[Message]], Report]) -> list[Asked]:
    """Every turn behind those before it, the last one again, and another question in place of an earlier one.

    `fresh` answers plainly and reuses nothing; its answers are the chat's.
    """
    texts = [text for prompt in prompts for text in prompt.turns]
    texts = (texts * TURNS)[:TURNS]
    asked, history = list[Asked](), list[Message]()
    for turn, text in enumerate(texts):
        history = [*history, Message("user", text)]
        report = fresh(history)
        asked.append(Asked("turn", turn, history, list(report.token_ids)))
        history = [*history, Message("assistant", report.text, report.thinking)]
    last = asked[-1]
    edited = [*asked[0].messages, *asked[1].messages[1:2], Message("user", texts[-1])]
    again = Asked("regenerate", last.turn, last.messages, last.want)
    return [*asked, again, Asked("edit", 1, edited, list(fresh(edited).token_ids))]


def compare(
    asked: Sequence[Asked], choices: Sequence[DrafterChoice], ask: Ask
) -> Iterator[tuple[Asked, DrafterChoice, Report]]:
    """Each choice's answers, one behind the other; `ask` reuses what is in the cache."""
    for choice in choices:
        for one in asked:
            yield one, choice, ask(one.messages, choice)
