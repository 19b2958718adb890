"""What the engine's rounds use of msgspec, for machines without it: structs as dataclasses. Nothing travels or is parsed."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

field = dataclasses.field
Raw = bytes


class MsgspecError(Exception):
    """Never raised here."""


def _fresh(value: Any) -> Any:
    """A field whose default is a new list or dict for each instance."""
    return dataclasses.field(default_factory=lambda: type(value)(value))


class Struct:
    """A dataclass; of the options of a class only `kw_only` and `frozen` (as being hashable) mean something."""

    def __init_subclass__(cls, *, kw_only: bool = False, frozen: bool = False, **others: object) -> None:
        for name, value in list(vars(cls).items()):
            if isinstance(value, list | dict) and not name.startswith("__"):
                setattr(cls, name, _fresh(value))
        dataclasses.dataclass(kw_only=kw_only, unsafe_hash=frozen)(cls)


class _Absent:
    """Encoders and decoders may be made, not used."""

    def __init__(self, *arguments: object) -> None:
        pass


def _refused(*arguments: object, **options: object) -> Any:
    raise NotImplementedError("this stands in for msgspec where only rounds are run; install msgspec")


to_builtins = convert = _refused
structs = SimpleNamespace(replace=dataclasses.replace)
msgpack = SimpleNamespace(Encoder=_Absent, Decoder=_Absent)
json = SimpleNamespace(encode=_refused, decode=_refused)
