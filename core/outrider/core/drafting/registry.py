"""Finding drafting methods by entry point, and the one wrapper through which the engine calls them.

A plugin may raise anything anywhere: at import, in `matches`, `load`, `advance` or `propose`. Here, and only here, that
becomes a row in a table or a notice; the engine goes on without it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from outrider.core.base.errors import DrafterError, ModelError, OutriderError, UsageError
from outrider.core.base.model_info import ModelInfo
from outrider.core.base.protocol import DrafterRow
from outrider.core.base.trouble import out_of_memory, release
from outrider.core.sampling.draft_tree import DraftTree

from . import announced
from .contract import (
    API,
    Committed,
    Context,
    DeviceContext,
    Drafter,
    Fit,
    Match,
    Method,
    Needs,
    Shape,
    Stateless,
    Target,
)
from .draft_check import flaw, renumbered
from .known_states import KnownStates
from .watching import watching

if TYPE_CHECKING:
    from torch import Tensor

GROUP = "outrider.drafters"
WORDS = 300  # letters of an exception that are shown
SLOW_MATCH, SLOW_LOAD, SLOW_CALL = 0.5, 5.0, 2.0  # seconds of a plugin's work from which it is named
OURS = "outrider"  # methods of this distribution are trusted with `probs`
FITS = ("exact", "family", "any", "no", "broken")  # of rows, best first

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """A method as its distribution announces it; nothing of it has been imported."""

    name: str
    distribution: str
    version: str
    point: EntryPoint

    @property
    def trusted(self) -> bool:
        """Whether its `probs` are honoured."""
        return self.distribution == OURS


def entries() -> list[Entry]:
    """Every announced method by name; of equal names ours wins, then the first."""
    found: dict[str, Entry] = {}
    origins: dict[int, tuple[str, str]] = {}  # each distribution's metadata is parsed once
    for point in entry_points(group=GROUP):
        name = point.name.replace("-", "_")
        dist = point.dist
        if dist is not None and id(dist) not in origins:
            about = dist.metadata
            origins[id(dist)] = about["Name"], about["Version"]
        entry = Entry(name, *origins.get(id(dist), ("?", "?")), point)
        if name not in found or (entry.trusted and not found[name].trusted):
            found[name] = entry
    return [found[name] for name in sorted(found)]


def words_of(error: BaseException) -> str:
    """What a person wants to read of an exception: its own words in one line, its type before them; no full stop behind ours."""
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


def _guarded(what: str, call: Callable[[], T]) -> T:
    """Run plugin code; whatever it raises becomes a DrafterError that names it."""
    try:
        return call()
    except OutriderError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        hint = "See the engine log, or remove the plugin."
        if out_of_memory(error):
            hint = "There is no memory left for it beside the model: try a shorter --context, or --drafter none."
        raise DrafterError(f"{what} failed: {words_of(error).rstrip('.')}.", hint) from error


def method(entry: Entry) -> Method:
    """Import a method. Raises DrafterError if it cannot be imported or speaks another contract version."""
    loaded: Any = _guarded(f"Importing the drafter {entry.name}", entry.point.load)
    made: Any = _guarded(f"Making the drafter {entry.name}", loaded) if isinstance(loaded, type) else loaded
    api = _guarded(f"The drafter {entry.name}", lambda: getattr(made, "api", None))
    if api != API:
        raise DrafterError(
            f"The drafter {entry.name} speaks contract version {api}, this Outrider speaks {API}.",
            f"Update {entry.distribution} or Outrider.",
        )
    return made


def match(entry: Entry, info: ModelInfo, weights: str | None = None) -> Match:
    """Ask a method whether it, or the `weights` it would take, fits. Raises DrafterError."""

    def ask() -> Match:
        made = method(entry)
        check = getattr(made, "check", None)
        return check(info, weights) if weights is not None and check else made.matches(info)

    answer = _guarded(f"The drafter {entry.name}", ask)
    if not isinstance(answer, Match):
        raise DrafterError(f"The drafter {entry.name} answered with no Match.", f"Update {entry.distribution}.")
    return answer


def takes_weights(entry: Entry) -> bool:
    """Whether a method judges weights that are given to it. Raises DrafterError if it cannot be imported."""
    return told(entry, "check") is not None


def trains(entry: Entry) -> bool:
    """Whether a method has a `recipe`. Ours load torch with theirs, so those are not looked at. Raises DrafterError as `told`."""
    if entry.trusted:
        return getattr_static(method(entry), "recipe", None) is not None
    return told(entry, "recipe") is not None


def told(entry: Entry, name: str) -> Any:
    """What a method may say of itself beyond the contract, None where it does not. Raises DrafterError."""
    made = method(entry)
    return _guarded(f"Asking the drafter {entry.name} for its {name}", lambda: getattr(made, name, None))


def row(entry: Entry, info: ModelInfo, weights: str | None = None) -> DrafterRow:
    """How a method, or `weights` with it, fits `info`; a broken plugin is a row that says so, weights of no use fit not."""
    made = DrafterRow(name=entry.name, distribution=entry.distribution, version=entry.version, trusted=entry.trusted)
    began = time.perf_counter()
    try:
        answer = match(entry, info, weights)
        _guarded(f"The drafter {entry.name}", lambda: _describe(made, answer))
        made.free = made.usable and bool(told(entry, "free"))
        made.trains = trains(entry)
        made.options = options_of(entry) or {}
    except OutriderError as error:
        made.fit = "no" if weights is not None and isinstance(error, ModelError) else "broken"
        made.reason, made.usable = error.message, False
    spent = time.perf_counter() - began
    if spent > SLOW_MATCH and not entry.trusted:
        made.seconds = spent
        made.reason = f"{made.reason.rstrip('.')}; it took {made.seconds:.1f} s to say so"
    return made


def _describe(made: DrafterRow, answer: Match) -> None:
    """Take a method's answer over into its row."""
    made.fit = answer.fit.name.lower()  # type: ignore[assignment]  # the enum and the literal share their words
    made.reason, made.nbytes, made.weights = str(answer.reason), int(answer.nbytes), answer.weights
    made.usable, made.gain = bool(answer.fit > Fit.NO and answer.ready), float(answer.gain)


def survey(info: ModelInfo, weights: str | None = None) -> list[DrafterRow]:
    """Every method with how it, or `weights` with it, fits `info`, best first."""
    rows = [row(entry, info, weights) for entry in entries()]
    return sorted(rows, key=lambda one: (FITS.index(one.fit), one.name))


def load(
    name: str,
    target: Target,
    options: Mapping[str, object],
    report: Callable[[str], None],
    guard: type[GuardedDrafter] | None = None,
) -> GuardedDrafter:
    """Load a drafter by method name. Raises DrafterError if it is unknown, does not fit, or fails to load."""
    with watching(name, "loading", report, SLOW_LOAD, trusted(name)):
        made = build(name, target, options)
        problem = _guarded(f"Loading the drafter {name}", lambda: announced.flaw(made, target.info.layers))
        if problem:
            raise DrafterError(f"The drafter {name} announces {problem}.", f"Update {named(name).distribution}.")
        return _guarded(
            f"Loading the drafter {name}", lambda: (guard or GuardedDrafter)(name, made, trusted(name), report)
        )


def build(name: str, target: Target, options: Mapping[str, object]) -> Drafter:
    """A drafter by method name, not guarded. Raises as `load`, and UsageError for an option that the method does not have.

    A method from outside gets a target whose keys and values cannot be written by mistake.
    """
    entry = named(name)
    check_options(name, {option: value for option, value in options.items() if option != "weights"})
    answer = _fitting(entry, target.info, options.get("weights"))
    if not entry.trusted:
        from .read_only import read_only

        target = read_only(target)
    return _guarded(f"Loading the drafter {name}", lambda: method(entry).load(target, answer, options))


def options_of(entry: Entry) -> dict[str, str] | None:
    """What a method may be told with its meaning; None for one that does not say. Raises DrafterError."""
    known = told(entry, "options")
    if known is None:
        return None
    return _guarded(f"The drafter {entry.name}", lambda: {str(name): str(meaning) for name, meaning in known.items()})


def check_options(name: str, options: Mapping[str, object]) -> None:
    """Raises UsageError for an option that a method does not have, DrafterError if there is no such method."""
    known = options_of(named(name)) if options else None
    strange = sorted(set(options) - set(known)) if known is not None else []
    if strange and known:
        raise UsageError(
            f"The drafter {name} has no option {strange[0]}.",
            f"It has: {', '.join(known)}. `outrider drafters show {name}` says what they mean.",
        )
    if strange:
        raise UsageError(f"The drafter {name} has no options.", f"Leave --drafter-option {strange[0]} out.")


def readings(name: str, info: ModelInfo, weights: str | None) -> list[Mapping[str, object]]:
    """The options under which a method would read its files, at least one set. Raises as `load`."""
    entry = named(name)
    answer = _fitting(entry, info, weights)
    offer = told(entry, "readings")
    found = _guarded(f"Asking the drafter {name} for readings", lambda: list(offer(info, answer))) if offer else []
    return found or [{}]


def trusted(name: str) -> bool:
    """Whether the `probs` of a method are honoured. Raises DrafterError if there is none of that name."""
    return named(name).trusted


def named(name: str) -> Entry:
    """The entry of that name. Raises DrafterError if there is none."""
    known = {entry.name: entry for entry in entries()}
    if name not in known:
        raise DrafterError(
            f"There is no drafter {name!r}; there are: auto, none, {', '.join(known)}.", "See `outrider drafters list`."
        )
    return known[name]


def _fitting(entry: Entry, info: ModelInfo, weights: object) -> Match:
    """How a method fits a target. Raises DrafterError if it does not, or is not ready."""
    answer = match(entry, info, str(weights) if weights else None)
    if answer.fit == Fit.NO:
        raise DrafterError(f"The drafter {entry.name} does not fit: {answer.reason}.", "See `outrider drafters list`.")
    if not answer.ready:
        raise DrafterError(f"The drafter {entry.name} {answer.reason}.", "See `outrider drafters list`.")
    return answer


class ActiveDrafter(Protocol):
    """What rides along: one guarded drafter, or several that compete. Nothing of it raises."""

    name: str
    trusted: bool
    device: bool
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
        """Hear what became true."""

    def rewind(self, length: int) -> None:
        """Cut to `length` tokens."""

    def lacking(self, newest: int) -> int:
        """How many of the newest tokens have a state that it needs and was not told."""
        ...

    def restate(self, step: Committed) -> None:
        """Hear tokens once more, the newest that it knows, now with their states."""

    def propose(self, context: Context, vocab: int, *, trees: bool = True) -> DraftTree | None:
        """A checked draft, or None; without `trees` the line of its first children."""
        ...

    def on_device(self, name: str | None = None) -> GuardedDrafter | None:
        """The one of that name, or that was chosen for this round, if it can draft on the device."""
        ...

    def propose_device(self, context: DeviceContext) -> DraftTree | None:
        """As `DeviceDrafter`; asked of what `on_device` gave."""
        ...

    def drafted_by(self, author: GuardedDrafter | None) -> None:
        """The round that `advance` will tell of next had a draft of that one, or none, whatever was chosen since."""

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
        self.known = 0  # tokens it has been told of
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
        """Itself."""
        return self.name

    @property
    def parts(self) -> tuple[str, ...]:
        """Itself."""
        return (self.name,)

    def reset(self) -> None:
        """Forget the conversation."""
        self.known, self._states = 0, KnownStates()
        self._call("reset")

    def advance(self, step: Committed) -> None:
        """Hand on what became true, nodes numbered as the drafter proposed them."""
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
        made = self._call("propose", context, vocab)
        if made is None:
            return None
        draft, problem = made
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
        made = self._call("fork")
        if made is None:
            return None
        other = type(self)(self.name, made, self.trusted, report)
        other._shared = made is self._drafter
        other.reset()
        return other

    def close(self) -> None:
        """Free what it holds, and let go of it: memory may be free only with the last reference."""
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
        """What a verb of the drafter gives; None after a failure."""
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
