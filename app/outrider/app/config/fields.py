"""The schema walked: every setting with its name, its environment variable and the check of a value."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from outrider.app.config.schema import BUNDLED, DEFAULT, Config
from outrider.core.base import protocol

Path = tuple[str, ...]
BUNDLES = ("personas", "presets", "models")  # sections of sections: sets of values with a name
_ENV = {"folders.models": "OUTRIDER_MODELS", "folders.builds": "OUTRIDER_BUILDS"}  # the engine reads these itself
_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text in quotes",
    list: "a list of texts",
    dict: "a table such as { name = 1 }",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong in the settings. `where` is a line of the file or a variable, for `line` 0 what is said there."""

    where: str
    text: str
    hint: str = ""
    line: int = 0

    def __str__(self) -> str:
        return " ".join(filter(None, (f"{self.where}: {self.text}", self.hint)))


@dataclass(frozen=True, slots=True)
class Field:
    """One setting."""

    path: str
    section: str
    name: str
    type: Any
    default: Any
    help: str
    unset: str
    """What `"default"` means, empty where it means nothing."""

    @property
    def env(self) -> str:
        """The environment variable that overrides the file."""
        return _ENV.get(self.path) or f"OUTRIDER_{self.section}_{self.name}".upper()

    @property
    def choices(self) -> list[str]:
        """The words that a value may be, but `default` where that leaves it open."""
        return [word for word in _choices(self.type) if not (self.unset and word == DEFAULT)]

    @property
    def closed(self) -> bool:
        """Whether it can be nothing but one of its choices."""
        return _plain(self.type) is None

    @property
    def switch(self) -> bool:
        """Whether it is on or off."""
        return _plain(self.type) is bool

    @property
    def words(self) -> str:
        """What a value must be."""
        return wanted(self.type)

    @property
    def told(self) -> str:
        """The sentence about it, with its default where that is known."""
        named = "off" if self.default is False else self.default if isinstance(self.default, str) else ""
        default = self.unset or named
        return self.help + (f"  [default: {default}]" if default else "")

    def checked(self, value: Any) -> Any:
        """The value in its type. Raises ValueError with a sentence that ends after the name."""
        try:
            made = msgspec.convert(value, self.type, strict=True)
        except msgspec.ValidationError:
            raise ValueError(self._refusal(value)) from None
        if self.section == "sampling" and made != DEFAULT:
            problem = protocol.Sampling(**{self.name: made}).problem()
            if problem:
                raise ValueError(problem.removeprefix("--").partition(" ")[2])
        if isinstance(made, dict) and (number := protocol.too_large(made)) is not None:
            raise ValueError(f"holds {shown(number)}, which is beyond any number that is of use.")
        if isinstance(made, str) and not made.strip() and self.path != "chat.system":
            raise ValueError("must not be empty.")
        return made

    def _refusal(self, value: Any) -> str:
        near = nearest(value, _choices(self.type)) if isinstance(value, str) else ""
        if near:
            return f"cannot be {shown(value)}. {near}"
        return f"must be {self.words}, not {shown(value)}."

    def read(self, text: str) -> Any:
        """A value from the environment or the command line: TOML, or a bare text where one is wanted. Raises ValueError."""
        if _plain(self.type) is str or text == DEFAULT or text in _choices(self.type):
            return self.checked(text)
        if _plain(self.type) is bool and text.lower() in _BOOLEAN:
            return self.checked(_BOOLEAN[text.lower()])
        import tomllib

        try:
            value = tomllib.loads(f"x = {text}")["x"]
        except tomllib.TOMLDecodeError:
            value = text
        if typing.get_origin(_plain(self.type)) is list and isinstance(value, str):
            value = [value]
        return self.checked(value)


_BOOLEAN = {"1": True, "yes": True, "on": True, "true": True, "0": False, "no": False, "off": False, "false": False}


def shown(value: Any) -> str:
    """A value as the file has it, cut to one short line."""
    from outrider.app.config.toml import written

    try:
        text = written(value)
    except TypeError:
        text = f"a {type(value).__name__}"
    return text if len(text) <= 40 else text[:39] + "…"


def nearest(name: str, names: Iterable[str]) -> str:
    """A sentence that proposes the most similar name, empty if none is similar."""
    near = difflib.get_close_matches(name, list(names), 1)
    return f"Did you mean {near[0]}?" if near else ""


# ------------------------------------------------------------------------------------------------ types


def _metas(kind: Any) -> list[msgspec.Meta]:
    """All constraints of a type, the outermost last."""
    if typing.get_origin(kind) is not typing.Annotated:
        return []
    inner, *metas = typing.get_args(kind)
    return [*_metas(inner), *metas]


def _arms(kind: Any) -> list[Any]:
    """The alternatives of a union, each with its constraints."""
    bare = typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind
    if typing.get_origin(bare) is typing.Annotated:
        return _arms(bare)
    if typing.get_origin(bare) in (typing.Union, type(int | str)):
        return [arm for part in typing.get_args(bare) for arm in _arms(part)]
    return [kind]


def _bare(kind: Any) -> Any:
    while typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    return kind


def _plain(kind: Any) -> Any:
    """The type of a value that is not one of a few words."""
    return next((_bare(arm) for arm in _arms(kind) if typing.get_origin(_bare(arm)) is not Literal), None)


def _choices(kind: Any) -> list[str]:
    return [
        word for arm in _arms(kind) if typing.get_origin(_bare(arm)) is Literal for word in typing.get_args(_bare(arm))
    ]


def wanted(kind: Any) -> str:
    """What a value of this type is, in words."""
    plain = _plain(kind)
    words = [f'"{choice}"' for choice in _choices(kind)]
    if plain is not None:
        metas = [meta for arm in _arms(kind) for meta in _metas(arm)]
        told = next((meta.extra["words"] for meta in metas if meta.pattern and meta.extra), "")
        words.insert(0, told or _WORDS[typing.get_origin(plain) or plain] + _range(metas))
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _range(metas: list[msgspec.Meta]) -> str:
    low = next((f" from {meta.ge}" for meta in metas if meta.ge is not None), "")
    high = next((f" to {meta.le}" for meta in metas if meta.le is not None), "")
    return low + high


def _walk() -> Iterable[Field]:
    for section in msgspec.structs.fields(Config):
        if section.name in BUNDLES:
            continue
        for field in msgspec.structs.fields(section.type):
            notes = next(meta for meta in reversed(_metas(field.type)) if meta.description)
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            yield Field(
                path=f"{section.name}.{field.name}",
                section=section.name,
                name=field.name,
                type=field.type,
                default=default,
                help=notes.description or "",
                unset=(notes.extra or {}).get("unset", ""),
            )


FIELDS: dict[str, Field] = {field.path: field for field in _walk()}
SECTIONS: dict[str, type[msgspec.Struct]] = {
    field.name: field.type for field in msgspec.structs.fields(Config) if field.name not in BUNDLES
}
_BUNDLED = {name for name, kind in SECTIONS.items() if kind in BUNDLED}
PERSONA: dict[str, Field] = {
    field.name: field for field in FIELDS.values() if field.section in _BUNDLED and field.name != "persona"
}
PRESET: dict[str, Field] = {name: field for name, field in PERSONA.items() if name != "model"}


def bundled(kind: str) -> dict[str, Field]:
    """What a section of `personas`, `presets` or `models` may set, by the last part of its name."""
    return PERSONA if kind == "personas" else PRESET
