"""How full the model's context is: what is said before it is, and what can be done once it is. Knows no widgets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from outrider.app.chat.input.attach import estimate, with_attachments
from outrider.app.chat.problem import Offer, Problem
from outrider.app.chat.talk import Chat, End, Reply, Turn

if TYPE_CHECKING:
    from outrider.app.chat.session import Session
    from outrider.app.client import EngineError
    from outrider.core.base.protocol import Report

FILLING, NEARLY = 0.75, 0.9
"""Shares of the context from which on it is said that it fills."""
_REFUSED = re.compile(r"The prompt has (\d+) tokens; with room for an answer (\d+) fit into the context\.")
_BACK = "It was not sent."
_NEW = Offer("n", "new", "new chat")
_CARRY_OVER = Offer("b", "carry_over", "new chat with the newest turns")
_LARGER = Offer("l", "larger_context", "larger context")


def held(reply: Reply | None) -> int:
    """Tokens that the model holds after a reply, its prompt included; 0 where that is not known."""
    report = reply.report if reply is not None else None
    return report.prompt_tokens + len(report.token_ids) if report is not None else 0


def limit(report: Report | None, context: int) -> Literal["context", "tokens"] | None:
    """What cut an answer: the end of the context, or the tokens that were asked for; None: nothing did."""
    if report is None or report.finish != "length":
        return None
    full = bool(context) and report.prompt_tokens + len(report.token_ids) >= context
    return report.limit or ("context" if full else "tokens")  # reports of earlier versions do not say


def is_full(reply: Reply | None, context: int) -> bool:
    """Whether nothing more fits behind a reply."""
    return bool(context) and held(reply) >= context


def cut_words(reply: Reply, context: int) -> str:
    """How a reply ended, if it was cut, for the line under it."""
    if reply.end is not End.LENGTH or reply.report is None:
        return reply.end.value
    if limit(reply.report, context) == "context":
        return "cut off: context is full"
    return f"cut off at {len(reply.report.token_ids):,} tokens"


def level(used: int, context: int) -> float:
    """The highest of the shares that are warned of which is reached, 0 before the first."""
    share = used / context if context else 0.0
    return NEARLY if share >= NEARLY else FILLING if share >= FILLING else 0.0


def newest(chat: Chat, context: int) -> list[Turn]:
    """The last turns of a chat that together take at most half of the context; none if the very last one takes more."""
    found: list[Turn] = []
    turns = [turn for turn in chat.turns if not turn.failed]
    room = context // 2
    for number in range(len(turns) - 1, -1, -1):
        room -= _size(turns[number], turns[number - 1] if number else None)
        if room < 0:
            break
        found.insert(0, turns[number])
    return found


def _size(turn: Turn, before: Turn | None) -> int:
    """Tokens of a turn, by what the engine counted where it did."""
    after, already = held(turn.reply), held(before.reply) if before is not None else 0
    if after and (already or before is None):
        return max(0, after - already)
    texts = [with_attachments(turn.text, turn.attachments), turn.reply.text if turn.reply is not None else ""]
    return estimate("\n".join(texts))


def why_not_carry_over(session: Session) -> str:
    """Why no new chat can begin with the newest turns, empty if one can."""
    if session.options.private:
        return "a private chat is the only one"
    if not session.chat.id or not any(not turn.failed for turn in session.chat.turns):
        return "nothing was said here yet"
    context = session.loaded.context if session.loaded is not None else 0
    return "" if newest(session.chat, context) else "the newest turn alone takes more than half of the context"


def why_not_larger(session: Session) -> str:
    """Why the context cannot grow, empty if it can."""
    return "" if session.options.model.context else "it is as large as model and memory allow"


def _ways(session: Session, *more: Offer) -> tuple[Offer, ...]:
    """What can be done now."""
    carried = () if why_not_carry_over(session) else (_CARRY_OVER,)
    return (_NEW, *carried, *more, *(() if why_not_larger(session) else (_LARGER,)))


def ended(session: Session, reply: Reply) -> Problem | str:
    """What is to be said after a reply: a card if the context is full, a line once it fills, else nothing."""
    size = session.loaded.context if session.loaded is not None else 0
    used = held(reply)
    if limit(reply.report, size) == "context":
        session.chat.warned = 1.0
        kept = "" if session.options.private else " What was said stays saved."
        text = f"All {size:,} tokens of the context are used; the last reply was cut off there. No other message fits in.{kept}"
        return Problem("This chat is full", text, offers=_ways(session, Offer("e", "edit", "edit your last message")))
    reached = level(used, size)
    if reached <= session.chat.warned:
        return ""
    session.chat.warned = reached
    words = "nearly full" if reached == NEARLY else "filling"
    carry = "" if session.options.private else ", /carry-over one with the newest turns"
    return f"The context is {words}: {used:,} of {size:,} tokens, {used / size:.0%}. /new begins a new chat{carry}."


def refused(session: Session, turn: Turn, error: EngineError) -> Problem | None:
    """The card for a message that does not fit, None if the engine refused it for another reason."""
    found = _REFUSED.match(error.message)
    if found is None:
        return None
    prompt, fits = int(found[1]), int(found[2])
    over = prompt - fits
    before = held(session.chat.last_reply())
    alone = prompt - before  # about: what is around a message counts with it
    if not before or alone > fits:
        room = f"{fits:,} tokens fit with room for an answer, and it has about {alone:,}"
        title = f"The message is too long by {'about ' if before else ''}{max(over if not before else alone - fits, 1):,} tokens"
        ways = [Offer("e", "prompt", "shorten it"), *(() if why_not_larger(session) else (_LARGER,))]
        return Problem(title, f"{room}.", _BACK, offers=tuple(ways))
    text = (
        f"With this message the prompt has {prompt:,} tokens, {over:,} more than fit into the context of {fits + 1:,}."
    )
    return Problem("This chat is full", text, _BACK, offers=_ways(session, Offer("e", "prompt", "shorten the message")))
