"""Which value holds, the strongest first:

an option of the command line, a variable of the environment, the persona, the section of the model, presets that match it,
the file, what was last used in a chat, the default.

What a chat was held with, or is told with /set and its like, is its own: it comes right below what was typed, the
environment and a persona that was typed, and is kept with the chat.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import msgspec

from outrider.app.config import remember
from outrider.app.config.fields import FIELDS, PERSONA, SECTIONS, Fault, shown
from outrider.app.config.read import File, persona_hint, read
from outrider.app.config.schema import DEFAULT, Config
from outrider.core.base.protocol import DrafterChoice, ModelChoice, Sampling

_EXACT = 7  # draft tokens that exact mode has room for in every pass, where nothing is said
_STRONGEST_FIRST = ("flag", "environment", "persona", "model", "preset", "file", "remembered", "default")


class Source(NamedTuple):
    """Where a value comes from: one of the eight kinds, and the place."""

    kind: str
    where: str = ""

    @property
    def rank(self) -> int:
        """0 for the strongest kind."""
        return _STRONGEST_FIRST.index(self.kind)


@dataclass(frozen=True)
class Settings:
    """Every setting with the value that holds, and where that comes from."""

    values: dict[str, Any]
    sources: dict[str, Source]
    faults: tuple[Fault, ...]
    file: File
    persona: str | None = None

    def get(self, path: str) -> Any:
        """The value, None where it is left to the model or the engine."""
        value = self.values[path]
        return None if value == DEFAULT and FIELDS[path].unset else value

    def place(self, path: str) -> str:
        """Where the value comes from, with the line if that is in the file: `config.toml, line 3`."""
        source, name = self.sources[path], FIELDS[path].name
        lines = self.file.lines
        if source.kind == "file":
            return f"{source.where}, line {lines.of(*path.split('.'))}"
        if source.kind in ("persona", "model", "preset"):
            line = lines.of(f"{source.kind}s", source.where, name)
            return f"{source.kind} {source.where}, line {line}"
        return " ".join(filter(None, source))

    @property
    def config(self) -> Config:
        """The same as the struct of the schema, without personas and presets."""
        sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
        for path, value in self.values.items():
            sections[FIELDS[path].section][FIELDS[path].name] = value
        return msgspec.convert(sections, Config)

    def model(self) -> ModelChoice:
        """What the engine is to load."""
        names = ("device", "dtype", "quantize", "context", "threads")
        values = {name: self.get(f"engine.{name}") for name in names}
        if self.get("drafting.exact"):
            values["exact"] = self.get("drafting.draft_tokens") or _EXACT
        return ModelChoice(model=at_home(self.get("engine.model")), **values)

    def drafter(self) -> DrafterChoice:
        """Who drafts. Weights and options go with the drafter that they were written for: a weaker layer's are left out."""
        rank = self.sources["drafting.drafter"].rank

        def of(name: str, otherwise: Any) -> Any:
            path = f"drafting.{name}"
            return self.get(path) if self.sources[path].rank <= rank else otherwise

        weights = of("drafter_weights", None)
        return DrafterChoice(
            name=self.get("drafting.drafter"),
            weights=at_home(weights) if weights else None,
            tokens=self.get("drafting.draft_tokens"),
            options=of("drafter_options", {}),
        )

    def sampling(self) -> Sampling:
        """How tokens are drawn."""
        return Sampling(**{one.name: self.get(path) for path, one in FIELDS.items() if one.section == "sampling"})


@dataclass(frozen=True)
class Asked:
    """What a command line asked for: values by dotted path, and a persona. `sections`: those that the rest may fill."""

    flags: Mapping[str, Any] = field(default_factory=dict)
    persona: str | None = None
    sections: tuple[str, ...] = tuple(SECTIONS)

    def settle(self) -> Settings:
        """Read file and environment, and find what holds. Raises LookupError with a sentence if there is no such persona."""
        file = read()
        faults = list(file.faults)
        flags = {path: (value, Source("flag", _flag(path))) for path, value in self.flags.items()}
        environment = self._allowed(_environment(faults))
        plain = self._allowed(_file(file))
        persona = self._persona(file, environment, faults)
        chosen = self._allowed(_bundle(file, "personas", persona)) if persona else {}
        model = next(
            layer["engine.model"][0]
            for layer in (flags, environment, chosen, plain, _DEFAULTS)
            if "engine.model" in layer
        )
        presets = self._allowed(_presets(file, model))
        own = self._allowed(_own(file, model))
        last = self._allowed({path: (value, Source("remembered")) for path, value in remember.last().items()})
        values, sources = {}, {}
        for path in FIELDS:
            for layer in (flags, environment, chosen, own, presets, plain, last, _DEFAULTS):
                if path in layer:
                    values[path], sources[path] = layer[path]
                    break
        return Settings(values, sources, tuple(faults), file, persona)

    def _allowed(self, layer: Layer) -> Layer:
        return {path: value for path, value in layer.items() if FIELDS[path].section in self.sections}

    def _persona(self, file: File, environment: Layer, faults: list[Fault]) -> str | None:
        if self.persona is not None:
            if self.persona in file.personas:
                return self.persona
            raise LookupError(f"There is no persona {self.persona}.", persona_hint(file, self.persona))
        if "chat" not in self.sections:
            return None
        name, source = environment.get("chat.persona", (file.values.get("chat.persona", DEFAULT), None))
        if name == DEFAULT or name in file.personas:
            return None if name == DEFAULT else name
        assert source is not None  # the file's own was checked when it was read
        faults.append(
            Fault(source.where, f"names {shown(name)}, but there is no such persona.", persona_hint(file, name))
        )
        return None


Layer = dict[str, tuple[Any, Source]]
_DEFAULTS: Layer = {path: (one.default, Source("default")) for path, one in FIELDS.items()}


def at_home(path: str) -> str:
    """A path with ~ replaced: no shell has seen those of a file."""
    return os.path.expanduser(path) if path.startswith("~") else path


def folders() -> dict[str, str]:
    """The environment variables that move the folders of the file, for the engine process."""
    settings = Asked(sections=("folders",)).settle()
    paths = [path for path, one in FIELDS.items() if one.section == "folders"]
    return {FIELDS[path].env: os.path.abspath(at_home(told)) for path in paths if (told := settings.get(path))}


def _flag(path: str) -> str:
    return f"--{FIELDS[path].name.replace('_', '-')}"


def environment_values(environ: Mapping[str, str]) -> tuple[dict[str, Any], list[Fault]]:
    """What the environment sets, and what of it is wrong."""
    found, faults = {}, []
    for path, one in FIELDS.items():
        text = environ.get(one.env)
        if text is None or (not text and path != "chat.system"):
            continue
        try:
            found[path] = one.read(text)
        except ValueError as error:
            faults.append(Fault(one.env, str(error), f"What {path} is otherwise holds."))
    return found, faults


def _environment(faults: list[Fault]) -> Layer:
    found, wrong = environment_values(os.environ)
    faults += wrong
    return {path: (value, Source("environment", FIELDS[path].env)) for path, value in found.items()}


def _file(file: File) -> Layer:
    return {path: (value, Source("file", file.path.name)) for path, value in file.values.items()}


def _bundle(file: File, kind: str, name: str) -> Layer:
    bundle: dict[str, Any] = getattr(file, kind)[name]
    return {PERSONA[leaf].path: (value, Source(kind[:-1], name)) for leaf, value in bundle.items()}


def _presets(file: File, model: str) -> Layer:
    """All presets whose pattern matches the model's name, or the last part of it; the later ones win."""
    names = _names(model)
    layer: Layer = {}
    for pattern in file.presets:
        if any(fnmatchcase(name, pattern.lower()) for name in names):
            layer |= _bundle(file, "presets", pattern)
    return layer


def _own(file: File, model: str) -> Layer:
    """What the model's own sections set; the later ones win."""
    layer: Layer = {}
    for name in file.models:
        if name.lower() in _names(model):
            layer |= _bundle(file, "models", name)
    return layer


def _names(model: str) -> set[str]:
    """What a model may be called: all of its name, or the last part of it."""
    return {model.lower(), model.rstrip("/").rpartition("/")[2].lower()}


def differences(before: Settings, after: Settings) -> list[str]:
    """The settings that hold another value now."""
    return [path for path in FIELDS if before.values[path] != after.values[path]]
