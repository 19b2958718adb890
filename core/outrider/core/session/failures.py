"""Drafters that failed with a loaded model: they are closed, and not read again until the user asks for them."""

from __future__ import annotations

from collections.abc import Mapping

from outrider.core.base.errors import DrafterError, ModelError
from outrider.core.drafting.registry import GuardedDrafter

Key = tuple[str, str]  # a method, and the options that its drafter is loaded with


class Failures:
    """Of one model. A drafter is known by its method and its options, weights included."""

    def __init__(self) -> None:
        self._errors: dict[Key, DrafterError | ModelError] = {}  # of those that could not be loaded
        self._loaded: dict[Key, GuardedDrafter] = {}

    def has(self, name: str, options: Mapping[str, object]) -> bool:
        """Whether that drafter failed."""
        key = _key(name, options)
        loaded = self._loaded.get(key)
        return key in self._errors or (loaded is not None and loaded.failed)

    def add(self, name: str, options: Mapping[str, object], error: DrafterError | ModelError) -> None:
        """It could not be loaded. What is kept of the error has no trace, which would keep all that had been read."""
        self._errors[_key(name, options)] = type(error)(error.message, error.hint)

    def watch(self, name: str, options: Mapping[str, object], drafter: GuardedDrafter) -> None:
        """It was loaded, and may fail yet."""
        self._loaded[_key(name, options)] = drafter

    def complain(self, name: str, options: Mapping[str, object]) -> None:
        """Raises what loading it raised; one that failed later said so then."""
        error = self._errors.get(_key(name, options))
        if error is not None:
            raise type(error)(error.message, error.hint)

    def forget(self, name: str) -> None:
        """Drafters of that method may be tried again; `auto` and `composite`: all."""
        for known in (self._errors, self._loaded):
            for key in [key for key in known if name in (key[0], "auto", "composite")]:
                del known[key]


def _key(name: str, options: Mapping[str, object]) -> Key:
    told = sorted((option, str(value)) for option, value in options.items() if value is not None)
    return name, repr(told)
