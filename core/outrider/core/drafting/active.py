"""Loaded drafters as the engine sees them: the one wrapper through which it calls them.

A plugin may raise anything anywhere. Here that becomes a notice, and the engine goes on without the drafter.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, Self

from outrider.core.base.errors import OutriderError
from outrider.core.base.trouble import out_of_memory, release
from outrider.core.sampling.draft_tree import DraftTree

from .contract import Committed, Context, DeviceContext, Drafter, Needs, Shape, Stateless
from .draft_check import flaw, renumbered
from .known_states import KnownStates
from .watching import watching

if TYPE_CHECKING:
    from torch import Tensor

WORDS = 300  # letters of an exception that are shown
SLOW_CALL = 2.0  # seconds of a plugin's work from which it is named


def words_of(error: BaseException) -> str:
    """An exception for a person to read: its type and its own words in one line; no full stop after ours."""
    if isinstance(error, OutriderError):
        return error.message.rstrip(".")
    words = " ".join(str(error).split())
    words = words if len(words) <= WORDS else f"{words[:WORDS].rstrip()} …"
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def is_interrupt(error: BaseException) -> bool:
    """Whether an exception that came out of plugin code is not the plugin's: the user's Ctrl-C, where there can be one.

    The engine process ignores it, so there a KeyboardInterrupt is the plugin's own. Everything else is: SystemExit and the
    panics of extensions in Rust are no Exception, and must not end the engine.
    """
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    return isinstance(error, GeneratorExit)


class ActiveDrafter(Protocol):
    """The drafter in use: one guarded drafter, or several that compete. Its methods do not raise."""

    name: str
    trusted: bool
    free: bool  # may be asked at any time, for next to nothing
    block: bool  # makes all tokens of a draft at once
    line: int | None  # tokens up to which its drafts are chains, where longer ones are trees
    needs: Needs
    shape: Shape

    @property
    def known(self) -> int: ...  # tokens it knows, or will know when it is asked

    @property
    def failed(self) -> bool: ...  # whether it has been switched off

    @property
    def active(self) -> str: ...  # who made the last draft

    @property
    def parts(self) -> tuple[str, ...]: ...  # all that may draft

    def reset(self) -> None:
        """Forget the conversation."""

    def advance(self, step: Committed) -> None:
        """Take what was committed."""

    def rewind(self, length: int) -> None:
        """Cut to `length` tokens."""

    def lacking(self, newest: int) -> int:
        """How many of the newest tokens have a state that it needs and did not get."""
        ...

    def restate(self, step: Committed) -> None:
        """Take the newest tokens that it knows once more, now with their states."""

    def propose(self, context: Context, vocab: int, *, trees: bool = True) -> DraftTree | None:
        """A checked draft, or None; without `trees` the line of its first children."""
        ...

    def on_device(self, name: str | None = None) -> GuardedDrafter | None:
        """The one of that name, or that was chosen for this round, if it can draft on the device."""
        ...

    def drafted_by(self, author: GuardedDrafter | None) -> None:
        """The round that `advance` reports next had a draft of `author`, or none, whatever was chosen since."""

    def states_of(self, author: GuardedDrafter, hidden: Tensor | None) -> Tensor | None:
        """Of the states [W, states asked for, d] those that `author` asked for."""
        ...

    def fork(self, report: Callable[[str], None]) -> ActiveDrafter | None:
        """One that follows another conversation, which begins empty, and fails by itself; None where that cannot be made."""

    def close(self) -> None:
        """Free what it holds."""


class GuardedDrafter:
    """A loaded drafter as the engine sees it: it cannot raise, and what it proposes has been checked.

    After its first failure it is reported, closed, and proposes nothing more.
    """

    def __init__(self, name: str, drafter: Drafter, trusted: bool, report: Callable[[str], None]) -> None:
        self.name = name
        self.trusted = trusted
        self.failed = False  # whether it has been switched off
        self._shared = False  # whether it is another's fork without state, for that one to close
        self.known = 0  # tokens that it got
        self._states = KnownStates()
        self._whole: tuple[int, list[int] | None] | None = (
            None  # nodes of its last draft, and those of them that were handed on
        )
        self._drafter = drafter
        self._report = report
        self.needs = drafter.needs
        self.shape: Shape = drafter.shape
        self.device = bool(getattr(drafter, "device", False))
        self.free = bool(getattr(drafter, "free", False))  # may be asked at any time, for next to nothing
        self.block = bool(getattr(drafter, "block", False))  # makes all tokens of a draft at once
        line = getattr(drafter, "line", None)  # tokens up to which its drafts are chains, where longer ones are trees
        self.line = line if isinstance(line, int) else None

    @property
    def active(self) -> str:
        return self.name

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.name,)

    def reset(self) -> None:
        """Forget the conversation."""
        self.known, self._states = 0, KnownStates()
        self._call("reset")

    def advance(self, step: Committed) -> None:
        """Pass on what was committed, nodes numbered as the drafter proposed them."""
        whole, self._whole = self._whole, None
        if whole is not None and (step.path.shape[0] or step.choices is not None):
            step = renumbered(step, *whole)
        self._call("advance", step)
        self.known = step.start + step.tokens.shape[0]
        if step.hidden is not None:
            self._states.add(step)

    def rewind(self, length: int) -> None:
        """Cut to `length` tokens, if it knows more."""
        if self.known > length:
            self._call("rewind", length)
            self.known = length
            self._states.cut(length)

    def lacking(self, newest: int) -> int:
        """As `ActiveDrafter`."""
        return self._states.lacking(self.known - newest, self.known) if self.needs.hidden else 0

    def restate(self, step: Committed) -> None:
        """As `ActiveDrafter`."""
        self.rewind(step.start)
        self.advance(step)

    def propose(self, context: Context, vocab: int, *, trees: bool = True) -> DraftTree | None:
        """A checked draft, or None. `probs` of an untrusted drafter are dropped."""
        self._whole = None
        proposal = self._call("propose", context, vocab)
        if proposal is None:
            return None
        draft, problem = proposal
        if problem:
            self._fail(f"proposed {problem}")
        if self.failed or not draft.ids:
            return None
        self._whole = (len(draft.ids), None if trees or draft.chain else draft.first_children)
        return draft if trees else draft.line()

    def _proposed(self, context: Context, vocab: int) -> tuple[DraftTree, str | None] | None:
        """What the drafter proposes, and what is wrong with it."""
        draft = self._drafter.propose(context)
        if draft is None:
            return None
        problem = flaw(draft, context.nodes, self.shape, vocab)
        drop = problem is None and draft.probs is not None and not context.probs
        return (replace(draft, probs=None) if drop else draft), problem

    def on_device(self, name: str | None = None) -> GuardedDrafter | None:
        """As `ActiveDrafter`."""
        return self if self.device and not self.failed else None

    def propose_device(self, context: DeviceContext) -> DraftTree | None:
        """As `DeviceDrafter`; None after a failure too."""
        draft = self._call("propose_device", context)
        if draft is None or not 0 < len(draft) <= context.nodes:
            return None
        self._whole = None
        return draft

    def drafted_by(self, author: GuardedDrafter | None) -> None:
        """As `ActiveDrafter`: it is always itself."""

    def states_of(self, author: GuardedDrafter, hidden: Tensor | None) -> Tensor | None:
        """As `ActiveDrafter`: all."""
        return hidden

    def fork(self, report: Callable[[str], None]) -> Self | None:
        """As `ActiveDrafter`."""
        copy = self._call("fork")
        if copy is None:
            return None
        other = type(self)(self.name, copy, self.trusted, report)
        other._shared = copy is self._drafter
        other.reset()
        return other

    def close(self) -> None:
        """Free what it holds, and drop the reference: memory may be free only with the last reference."""
        drafter, self.failed = self._drafter, True
        self._drafter = Stateless()
        if self._shared:
            return
        try:
            drafter.close()
        except BaseException as error:
            if is_interrupt(error):
                raise
            self._report(f"The drafter {self.name} failed while closing: {words_of(error)}.")

    def _call(self, phase: str, *arguments: Any) -> Any:
        """The result of a method of the drafter; None after a failure."""
        if self.failed:
            return None
        try:
            if self.trusted:  # our own are not watched
                return (self._proposed if phase == "propose" else getattr(self._drafter, phase))(*arguments)
            with watching(self.name, phase, self._report, SLOW_CALL, self.trusted):
                return (self._proposed if phase == "propose" else getattr(self._drafter, phase))(*arguments)
        except BaseException as error:  # a plugin may raise anything; this is the isolation that keeps the answer going
            if is_interrupt(error):
                raise
            short = out_of_memory(error)
            again = short and self._has_room(phase)
            if not again:
                self._fail(f"ran out of memory in {phase}" if short else f"failed in {phase}: {words_of(error)}")
        if short:  # the target needs it
            release()
        return self._call(phase, *arguments) if again else None

    def _has_room(self, phase: str) -> bool:
        """Whether memory was found for a call that ran out of it, and that may be made once more."""
        return False

    def _fail(self, what: str) -> None:
        self.failed = True
        self._report(f"The drafter {self.name} {what}. It is switched off; the answer goes on without it.")
        self.close()
