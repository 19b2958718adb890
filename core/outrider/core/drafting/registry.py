"""Finding and loading drafting methods by entry point. `active` has the wrapper of loaded drafters.

A plugin may raise anything anywhere: at import, in `matches` or `load`. Here that becomes a row in a table or a DrafterError.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, TypeVar

from outrider.core.base.errors import DrafterError, ModelError, OutriderError, UsageError
from outrider.core.base.model_info import ModelInfo
from outrider.core.base.protocol import DrafterRow
from outrider.core.base.trouble import out_of_memory

from . import announced
from .active import GuardedDrafter, is_interrupt, words_of
from .contract import (
    API,
    Drafter,
    Fit,
    Match,
    Method,
    Target,
)
from .watching import watching

if TYPE_CHECKING:
    pass

GROUP = "outrider.drafters"
SLOW_MATCH, SLOW_LOAD = 0.5, 5.0  # seconds of a plugin's work from which it is named
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
    by_name: dict[str, Entry] = {}
    origins: dict[int, tuple[str, str]] = {}  # each distribution's metadata is parsed once
    for point in entry_points(group=GROUP):
        name = point.name.replace("-", "_")
        dist = point.dist
        if dist is not None and id(dist) not in origins:
            about = dist.metadata
            origins[id(dist)] = about["Name"], about["Version"]
        entry = Entry(name, *origins.get(id(dist), ("?", "?")), point)
        if name not in by_name or (entry.trusted and not by_name[name].trusted):
            by_name[name] = entry
    return [by_name[name] for name in sorted(by_name)]


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
    plugin: Any = _guarded(f"Making the drafter {entry.name}", loaded) if isinstance(loaded, type) else loaded
    api = _guarded(f"The drafter {entry.name}", lambda: getattr(plugin, "api", None))
    if api != API:
        raise DrafterError(
            f"The drafter {entry.name} speaks contract version {api}, this Outrider speaks {API}.",
            f"Update {entry.distribution} or Outrider.",
        )
    return plugin


def match(entry: Entry, info: ModelInfo, weights: str | None = None) -> Match:
    """Ask a method whether it, or the `weights` it would take, fits. Raises DrafterError."""

    def ask() -> Match:
        plugin = method(entry)
        check = getattr(plugin, "check", None)
        return check(info, weights) if weights is not None and check else plugin.matches(info)

    answer = _guarded(f"The drafter {entry.name}", ask)
    if not isinstance(answer, Match):
        raise DrafterError(f"The drafter {entry.name} answered with no Match.", f"Update {entry.distribution}.")
    return answer


def takes_weights(entry: Entry) -> bool:
    """Whether a method judges weights that are given to it. Raises DrafterError if it cannot be imported."""
    return extra(entry, "check") is not None


def trains(entry: Entry) -> bool:
    """Whether a method has a `recipe`. Ours load torch with theirs, so they are not read. Raises DrafterError as `extra`."""
    if entry.trusted:
        return getattr_static(method(entry), "recipe", None) is not None
    return extra(entry, "recipe") is not None


def extra(entry: Entry, name: str) -> Any:
    """What a method may say of itself beyond the contract, None where it does not. Raises DrafterError."""
    plugin = method(entry)
    return _guarded(f"Asking the drafter {entry.name} for its {name}", lambda: getattr(plugin, name, None))


def row(entry: Entry, info: ModelInfo, weights: str | None = None) -> DrafterRow:
    """How a method, or `weights` with it, fits `info`; a broken plugin is a row that says so, weights of no use fit not."""
    result = DrafterRow(name=entry.name, distribution=entry.distribution, version=entry.version, trusted=entry.trusted)
    began = time.perf_counter()
    try:
        answer = match(entry, info, weights)
        _guarded(f"The drafter {entry.name}", lambda: _describe(result, answer))
        result.free = result.usable and bool(extra(entry, "free"))
        result.trains = trains(entry)
        result.options = options_of(entry) or {}
    except OutriderError as error:
        result.fit = "no" if weights is not None and isinstance(error, ModelError) else "broken"
        result.reason, result.usable = error.message, False
    spent = time.perf_counter() - began
    if spent > SLOW_MATCH and not entry.trusted:
        result.seconds = spent
        result.reason = f"{result.reason.rstrip('.')}; it took {result.seconds:.1f} s to say so"
    return result


def _describe(row: DrafterRow, answer: Match) -> None:
    """Take a method's answer over into its row."""
    row.fit = answer.fit.name.lower()  # type: ignore[assignment]  # the enum and the literal share their words
    row.reason, row.nbytes, row.weights = str(answer.reason), int(answer.nbytes), answer.weights
    row.usable, row.gain = bool(answer.fit > Fit.NO and answer.ready), float(answer.gain)


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
        drafter = build(name, target, options)
        problem = _guarded(f"Loading the drafter {name}", lambda: announced.flaw(drafter, target.info.layers))
        if problem:
            raise DrafterError(f"The drafter {name} announces {problem}.", f"Update {named(name).distribution}.")
        return _guarded(
            f"Loading the drafter {name}", lambda: (guard or GuardedDrafter)(name, drafter, trusted(name), report)
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
    """The options of a method with their meaning; None for one that does not say. Raises DrafterError."""
    known = extra(entry, "options")
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
    offer = extra(entry, "readings")
    options = _guarded(f"Asking the drafter {name} for readings", lambda: list(offer(info, answer))) if offer else []
    return options or [{}]


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
