"""`/verify`: writes a reply once more without drafts, with its own seed and settings, and says whether it is the same."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import msgspec

from outrider.app.chat.compare import parting
from outrider.app.chat.compare.parting import Parting, Said
from outrider.app.chat.compare.race import PLAIN
from outrider.app.chat.compare.runner import Asker
from outrider.app.chat.talk import Chat, End, Turn
from outrider.app.client import EngineDied, EngineError
from outrider.app.store.records import Settings
from outrider.core.base.protocol import DrafterChoice, Generate, Loaded, Message, Report, Step


def messages_before(chat: Chat, turn: Turn) -> list[Message]:
    """What the engine was sent for the reply of this turn."""
    asked = copy.copy(turn)
    asked.reply = None
    shown = copy.copy(chat)
    shown.turns = [*chat.turns[: chat.turns.index(turn)], asked]
    return shown.messages()


def last_turn(chat: Chat) -> Turn | None:
    """The newest turn whose reply has a report."""
    return next((turn for turn in reversed(chat.turns) if turn.reply is not None and turn.reply.report), None)


def refusal(turn: Turn | None, settings: Settings) -> str:
    """Why there is nothing to verify, in a few words; empty if there is. `settings`: those that hold now."""
    report = turn.reply.report if turn is not None and turn.reply is not None else None
    if turn is None or turn.reply is None or report is None or not report.token_ids:
        return "no reply is finished yet"
    if turn.reply.end is End.INTERRUPTED:
        return "this reply was interrupted"
    if turn.reply.lead:
        return "you wrote the beginning of this reply"
    if turn.reply.parts:
        return "this reply was gone on with, in parts"
    if report.rule == "typical":
        return "the rule `typical` is lossy by design"
    if report.model != settings.model.model:
        return f"this reply was written by {report.model}"
    return ""


@dataclass(frozen=True, slots=True)
class Verified:
    """What came of it."""

    tokens: int
    by: str
    parting: Parting | None = None
    rule: str = "match"

    @property
    def how(self) -> str:
        """How the reply was written."""
        return f"as with {self.by}" if self.by != "none" else "as before, when nobody drafted either"

    def words(self) -> str:
        """In one or two sentences."""
        count = f"{self.tokens} token{'' if self.tokens == 1 else 's'}"
        if self.parting is None:
            return f"Verified: without drafts the model writes the same {count}, one by one, {self.how}."
        sampled = " Under the rule `rejection` sampled text may differ by design." if self.rule == "rejection" else ""
        return f"Not the same without drafts. {self.parting.words()}{sampled}"


class Verifier:
    """One reply. `settings`: what it was written with."""

    def __init__(self, asker: Asker, turn: Turn, messages: list[Message], settings: Settings, loaded: Loaded) -> None:
        assert turn.reply is not None and turn.reply.report is not None
        self._asker, self._messages, self._settings, self._loaded = asker, messages, settings, loaded
        self._text = turn.reply.thought.text + turn.reply.text
        self._report: Report = turn.reply.report

    async def run(self) -> Verified:
        """Raises EngineError, and Stopped."""
        report = self._report
        self._asker.phase("Writing the reply once more without drafts")
        steps, again = await self._asker.ask(self._request(DrafterChoice(name=PLAIN), self._limit()))
        place = parting.first_difference(again.token_ids, report.token_ids)
        by = report.drafter if any(name != PLAIN for name in report.drafters) else "none"
        if report.finish == "cancelled" and place == len(report.token_ids):
            place = None  # it was stopped there
        if place is None:
            return Verified(len(report.token_ids), by)
        return Verified(len(report.token_ids), by, await self._parting(steps, place, by), report.rule)

    def _limit(self) -> int:
        """One more than it has if it ended by itself, to see whether it ends again."""
        return len(self._report.token_ids) + (self._report.finish == "stop")

    async def _parting(self, steps: list[Step], place: int, by: str) -> Parting:
        found = Parting(
            one="plain",
            other=by if by != "none" else "the reply",
            token=place,
            before=parting.text_before(steps, place),
            ours=Said(parting.text_at(steps, place)),
            theirs=Said(self._rest(steps, place)),
        )
        self._asker.phase(f"Looking at token {place + 1}, where the two part")
        try:
            theirs, _ = await self._asker.ask(self._request(self._choice(), place + 1))
        except EngineDied:
            raise
        except EngineError:
            return found
        ids = self._report.token_ids
        one, other = parting.seen(steps, place, _ids(steps)), parting.seen(theirs, place, ids)
        if other is not None:
            found.theirs.text = other.text
        return parting.judge(found, one, other, dtype=self._loaded.dtype, exact=self._settings.model.exact is not None)

    def _rest(self, steps: list[Step], place: int) -> str | None:
        """What the reply goes on with there, a few characters; None where it ended."""
        if place >= len(self._report.token_ids):
            return None
        tokens = [token for step in steps for token in step.tokens]
        before = "".join(token.text for token in tokens[:place])
        whole = self._text
        return whole[len(before) : len(before) + 12] if whole.startswith(before) else "something else"

    def _choice(self) -> DrafterChoice:
        own = self._settings.drafter
        return own if own.name == self._report.drafter else DrafterChoice(name=self._report.drafter)

    def _request(self, drafter: DrafterChoice, limit: int) -> Generate:
        return Generate(
            id=self._asker.number(),
            model=self._settings.model,
            messages=self._messages,
            sampling=msgspec.structs.replace(self._settings.sampling, seed=self._report.seed, max_tokens=limit),
            drafter=drafter,
            rule=self._report.rule,
            think=self._settings.think,
            detail=True,
            lenient=True,
        )


def _ids(steps: list[Step]) -> list[int]:
    return [token.id for step in steps for token in step.tokens]
