"""Typed access to the values of a config, whoever wrote it: a config.json, the metadata of a GGUF file, a drafter's settings.

A value of another type, or out of range, ends in one sentence that names key and value. An absent key and null are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NoReturn, Self

from outrider.core.base.errors import ModelError

AGAIN = "Download it again, whole."
SIZE = 1 << 26  # more than any size, count of words or context has
LAYERS = 1 << 12
LARGEST = 1e12  # of plain numbers


class ConfigReader:
    """The values of one table. All readings raise ModelError; none gives a value that it has not checked."""

    def __init__(
        self,
        values: Mapping[str, Any],
        origin: str,
        hint: str = AGAIN,
        error: type[ModelError] = ModelError,
        prefix: str = "",
    ) -> None:
        """`origin` begins each sentence, `prefix` each key."""
        self._values, self._origin, self._hint, self._error, self._prefix = values, origin, hint, error, prefix

    def has(self, key: str) -> bool:
        """Whether there is a value other than null."""
        return self._values.get(key) is not None

    def holds(self, key: str) -> bool:
        """Whether there is a value that asks for something: neither false nor 0 nor empty."""
        return bool(self._values.get(key))

    def first(self, *keys: str) -> str:
        """The first of these keys that has a value; the first of all if none has one."""
        return next((key for key in keys if self.has(key)), keys[0])

    def given(self, **values: Any) -> Self:
        """The same table with other values."""
        return type(self)({**self._values, **values}, self._origin, self._hint, self._error, self._prefix)

    def defaults(self, **values: Any) -> Self:
        """The same table with these values where it has none."""
        return self.given(**{key: value for key, value in values.items() if not self.has(key)})

    def given_keys(self) -> Iterator[str]:
        """Those with a value."""
        return filter(self.has, self._values)

    def nested(self) -> bool:
        """Whether it is a table of tables."""
        return any(isinstance(value, Mapping) for value in self._values.values())

    def empty(self) -> bool:
        """Whether there is no value at all."""
        return not any(self.given_keys())

    def values(self, *keys: str) -> dict[str, Any]:
        """What is there of these keys, unchecked: for another table."""
        return {key: self._values[key] for key in keys if self.has(key)}

    # ------------------------------------------------------------------ values

    def integer(self, key: str, low: int = 1, high: int = SIZE, default: int | None = None) -> int:
        """A whole number from `low` to `high`; a default of None means that there must be one."""
        value = self._value(key, default)
        if not _is_integer(value) or not low <= value <= high:
            self.wrong(key, f"it must be a whole number from {low} to {high}")
        return int(value)

    def number(self, key: str, low: float = 0.0, high: float = LARGEST, default: float | None = None) -> float:
        """A finite number from `low` to `high`; a default of None means that there must be one."""
        value = self._value(key, default)
        if not _is_number(value) or not low <= value <= high:
            self.wrong(key, f"it must be a number from {low:g} to {high:g}")
        return float(value)

    def factor(self, key: str, default: float | None = None) -> float:
        """A number that something is multiplied or divided by: above 0, and neither tiny nor huge."""
        return self.number(key, 1e-6, 1e6, default)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            self.wrong(key, "it must be true or false")
        return value

    def word(self, key: str, known: Collection[str] = (), default: str | None = None) -> str:
        """A string, one of `known` unless that is empty; a default of None means that there must be one."""
        value = self._value(key, default)
        if not isinstance(value, str):
            self.wrong(key, "it must be a string")
        if known and value not in known:
            self.wrong(key, f"known are {', '.join(sorted(known))}")
        return value

    def length(self, key: str) -> int:
        """How many characters a string, or values a list has."""
        value = self._value(key, None)
        if not isinstance(value, str | list | tuple) or not value:
            self.wrong(key, "it must be a list or a string with one entry or character for each layer")
        return len(value)

    def is_word(self, key: str, word: str) -> bool:
        """Whether a key that may also hold a number holds this word."""
        return self._values.get(key) == word

    def interval(self, key: str) -> tuple[float, float]:
        """Two numbers, the smaller one first; either may be infinite, which transformers 5 writes as a table of one word."""
        value = self._value(key, None)
        found = [_unpacked(item) for item in value] if isinstance(value, list | tuple) else []
        if len(found) != 2 or not all(isinstance(item, int | float) for item in found) or not found[0] <= found[1]:
            self.wrong(key, "it must be two numbers, the smaller one first")
        return float(found[0]), float(found[1])

    def table(self, key: str) -> Self:
        """A table in the table, an empty one if there is none."""
        value = self._value(key, {})
        if not isinstance(value, Mapping):
            self.wrong(key, "it must be a table of settings")
        return type(self)(value, self._origin, self._hint, self._error, f"{self._prefix}{key}.")

    # ------------------------------------------------------------------ lists

    def words(self, key: str, known: Collection[str], layers: int = 0) -> list[str]:
        """Strings of which each is known: one for each of so many layers (there may be more), or as many as there are."""
        what = f"of {', '.join(sorted(known))}"
        return self._list(key, what, lambda item: isinstance(item, str) and item in known, layers)

    def integers(self, key: str, low: int = 0, high: int = SIZE, layers: int = 0) -> list[int]:
        """Whole numbers from `low` to `high`, counted as `words` are."""
        what = f"of whole numbers from {low} to {high}"
        return self._list(key, what, lambda item: _is_integer(item) and low <= item <= high, layers)

    def numbers(self, key: str, low: float = 0.0, high: float = LARGEST, layers: int = 0) -> list[float]:
        """Numbers from `low` to `high`, counted as `words` are."""
        what = f"of numbers from {low:g} to {high:g}"
        return self._list(key, what, lambda item: _is_number(item) and low <= item <= high, layers)

    def _list(self, key: str, what: str, fits: Callable[[Any], bool], layers: int) -> list[Any]:
        value = self._value(key, None)
        if not isinstance(value, list | tuple):
            self.wrong(key, f"it makes no sense as a list {what}")
        for item in value:
            if not fits(item):
                self.wrong(key, f"it makes no sense as a list {what}, for it holds {_shown(item)}")
        if len(value) < layers:
            self.wrong(key, f"it has {len(value)} entries, and num_hidden_layers is {layers}")
        return list(value[:layers] if layers else value)

    # ------------------------------------------------------------------ errors

    def wrong(self, key: str, why: str) -> NoReturn:
        """Raise for a value that does not fit; `why` ends the sentence."""
        self.fail(f"gives no usable {self._prefix}{key} ({_shown(self._values.get(key))}): {why}")

    def fail(self, what: str) -> NoReturn:
        """Raise the error of this config; `what` follows its origin and ends the sentence."""
        raise self._error(f"{self._origin} {what}.", self._hint)

    def _value(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is None:
            value = default
        if value is None and key not in self._values:
            self.fail(f"cannot be used: it has no usable {self._prefix + key!r}")
        return value


def divides(config: ConfigReader, part: tuple[str, int], whole: tuple[str, int]) -> None:
    """Raise if a count does not divide another one; both with their keys."""
    if whole[1] % part[1]:
        config.wrong(part[0], f"it must divide {whole[0]}, which is {whole[1]}")


def _is_integer(value: Any) -> bool:
    """Whether it stands for a whole number; some writers put `64.0`."""
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _unpacked(value: Any) -> Any:
    return float("inf") if value == {"__float__": "Infinity"} else value


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def _shown(value: object) -> str:
    text = _first(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _first(value: object) -> str:
    """The value as Python writes it; of long lists only the beginning."""
    if isinstance(value, list | tuple) and len(value) > 12:
        return f"[{', '.join(map(_first, value[:12]))}, …]"
    return repr(value)


OMITTED: dict[str, dict[str, int]] = {  # what published multimodal configs leave out where it is transformers' default
    "gemma3": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
    },
}


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text settings of a config: multimodal checkpoints nest them, may tie the head on either level, and omit some."""
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        return dict(config)
    tied = config.get("tie_word_embeddings", inner.get("tie_word_embeddings"))
    merged = {**OMITTED.get(str(config.get("model_type")), {}), **inner}
    if tied is not None:
        merged["tie_word_embeddings"] = tied
    merged.setdefault("model_type", config.get("model_type"))
    return merged
