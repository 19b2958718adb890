"""What drafters from outside may only read: the tokens of a conversation, and the keys and values of the target.

A guard against mistakes, such as an in-place operation on what is not one's own; it is no wall against code that means harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast, overload

import torch
from torch import Tensor

from .contract import Target

IN_PLACE = {
    "__setitem__",
    "__set__",
    "__iand__",
    "__ior__",
    "__ixor__",
    "__ilshift__",
    "__irshift__",
}  # and names with _


class Tokens(Sequence[int]):
    """A list that can be read alone; a part of it is a copy."""

    __slots__ = ("_ids",)

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self._ids[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)


class ReadOnly(Tensor):
    """A tensor that no operation writes to, nor to a view of it; what is computed from it is a plain one."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(isinstance(one, ReadOnly) for one in _written(func, args, kwargs)):
            raise RuntimeError("the target's keys and values are read-only; clone() gives a copy to write to")
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
            read = [one for one in _flat([*args, *kwargs.values()]) if isinstance(one, ReadOnly)]
            return _kept(result, {one.untyped_storage().data_ptr() for one in read})


def _written(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """What an operation writes to."""
    name = getattr(func, "__name__", "")
    tensors = _flat([kwargs.get("out")])
    if args and (name in IN_PLACE or (name.endswith("_") and not name.endswith("__")) or kwargs.get("inplace")):
        tensors += _flat([args[0]])
    return tensors


def _flat(values: Sequence[Any]) -> list[Any]:
    """Values, those in lists and tuples with them."""
    return [one for value in values for one in (_flat(value) if isinstance(value, list | tuple) else [value])]


def _kept(result: Any, mine: set[int]) -> Any:
    """A result whose views of what is read-only are so too."""
    if isinstance(result, Tensor):
        return result.as_subclass(ReadOnly if result.untyped_storage().data_ptr() in mine else Tensor)
    if type(result) in (list, tuple):
        return type(result)(_kept(one, mine) for one in result)
    if type(result).__module__ == "numpy" and hasattr(result, "flags"):
        result.flags.writeable = False
    return result


class ReadOnlyTarget:
    """A target whose keys and values can only be read. All else that it gives a drafter is a copy already."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def kv(self, layer: int) -> tuple[Tensor, Tensor, int]:
        """As `Target`; writing to it raises RuntimeError."""
        keys, values, length = self._target.kv(layer)
        return keys.as_subclass(ReadOnly), values.as_subclass(ReadOnly), length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


def read_only(target: Target) -> Target:
    """A target as a drafter from outside sees it."""
    return cast("Target", ReadOnlyTarget(target))
