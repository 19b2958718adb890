"""The options that `chat`, `run`, `bench` and `verify` share, checked before an engine starts."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import click

from outrider.app.config import FIELDS, Asked, Settings
from outrider.app.config.read import read
from outrider.app.names import complete_device, complete_drafter, complete_model, complete_option, complete_weights
from outrider.app.render import WrongUsage, say
from outrider.core.base.protocol import (
    LEAST_CONTEXT,
    MOST_DRAFTED,
    MOST_TOKENS,
    DrafterChoice,
    ModelChoice,
    Sampling,
    most_threads,
    too_large,
)

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
_SAMPLING = tuple(Sampling.__struct_fields__)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the user asked of the engine, in the shapes that requests carry."""

    model: ModelChoice
    drafter: DrafterChoice
    sampling: Sampling
    system: str | None
    rule: str
    asked: Asked
    """What was typed, to settle again when the settings have changed."""
    settings: Settings

    def typed(self, path: str) -> bool:
        """Whether the setting was an option of the command line."""
        return path in self.asked.flags

    def insisted(self, name: str) -> bool:
        """Whether the environment, or a persona that was typed, sets what an option of this name says."""
        kind = self.settings.sources[_PATHS[name]].kind if name in _PATHS else ""
        return kind == "environment" or (kind == "persona" and self.asked.persona is not None)


class Number(click.FloatRange):
    """A number in a range; `nan`, which is in none, is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """As of any range."""
        made = super().convert(value, param, ctx)
        if math.isnan(made):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return made


def _name(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise WrongUsage(f"{parameter.opts[0]} must not be empty.")
    return value


def _drafter(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    name = _name(context, parameter, value)
    return None if name is None else name.strip().replace("-", "_")


def _device(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not _DEVICE.fullmatch(value):
        raise WrongUsage(f"--device must be auto, cpu, cuda or cuda:N, not {value!r}.")
    return value


def once(found: Collection[object], name: object, option: str, what: str) -> None:
    """Raises WrongUsage if a repeatable option names one thing twice."""
    if name in found:
        raise WrongUsage(f"{option} gives {what} {name} more than once.", "Give each of them one value.")


def _biases(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[int, float]:
    biases: dict[int, float] = {}
    for value in values:
        token, _, bias = value.partition("=")
        try:
            number, added = int(token), float(bias)
        except ValueError:
            message = f"--logit-bias must be ID=B, a token id and a number such as 42=-5, not {value!r}."
            raise WrongUsage(message) from None
        once(biases, number, "--logit-bias", "token")
        biases[number] = added
    return biases


def _settings(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """NAME=VALUE, where a value that is JSON (8, 0.5, true) is read as such."""
    found: dict[str, Any] = {}
    for value in values:
        name, equals, told = value.partition("=")
        if not equals or not name.strip():
            raise WrongUsage(f"--drafter-option must be NAME=VALUE, such as tree=chain, not {value!r}.")
        once(found, name.strip(), "--drafter-option", "name")
        try:
            found[name.strip()] = json.loads(told)
        except (ValueError, RecursionError):
            found[name.strip()] = told
        if (number := too_large(found[name.strip()])) is not None:
            raise WrongUsage(f"--drafter-option {name.strip()}: {number} is beyond any number that is of use.")
    return found


def complete_persona(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in read().personas if name.startswith(incomplete)]


def _told(path: str) -> str:
    return FIELDS[path].told


def _sampling(name: str, kind: type, metavar: str) -> Callable[[Any], Any]:
    return click.option(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=_told(f"sampling.{name}"))


drafter_option = click.option(
    "--drafter-option",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_settings,
    shell_complete=complete_option,
    help="A setting of the drafter's own, such as tree=chain or corpus=notes.txt; may be given more than once.",
)
_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "model": click.option(
        "--model",
        "-m",
        metavar="M",
        callback=_name,
        shell_complete=complete_model,
        help=_told("engine.model"),
    ),
    "drafter": click.option(
        "--drafter",
        "-d",
        metavar="D",
        callback=_drafter,
        shell_complete=complete_drafter,
        help=_told("drafting.drafter"),
    ),
    "weights": click.option(
        "--drafter-weights",
        "weights",
        metavar="PATH|HUB_ID",
        callback=_name,
        shell_complete=complete_weights,
        help=_told("drafting.drafter_weights"),
    ),
    "drafter_option": drafter_option,
    "draft_tokens": click.option(
        "--draft-tokens",
        type=click.IntRange(1, MOST_DRAFTED),
        metavar="K",
        help=_told("drafting.draft_tokens"),
    ),
    "temperature": _sampling("temperature", float, "T"),
    "top_p": _sampling("top_p", float, "P"),
    "top_k": _sampling("top_k", int, "N"),
    "min_p": _sampling("min_p", float, "P"),
    "seed": _sampling("seed", int, "N"),
    "max_tokens": _sampling("max_tokens", int, "N"),
    "stop": click.option("--stop", multiple=True, metavar="TEXT", help="Stop before this text; may be repeated."),
    "system": click.option("--system", "-s", metavar="TEXT", help=_told("chat.system")),
    "device": click.option(
        "--device", metavar="D", callback=_device, shell_complete=complete_device, help=_told("engine.device")
    ),
    "dtype": click.option("--dtype", type=click.Choice(FIELDS["engine.dtype"].choices), help=_told("engine.dtype")),
    "quantize": click.option(
        "--quantize", type=click.Choice(FIELDS["engine.quantize"].choices), help=_told("engine.quantize")
    ),
    "context": click.option(
        "--context", type=click.IntRange(LEAST_CONTEXT, MOST_TOKENS), metavar="N", help=_told("engine.context")
    ),
    "threads": click.option(
        "--threads", type=click.IntRange(1, most_threads()), metavar="N", help=_told("engine.threads")
    ),
    "rule": click.option("--rule", type=click.Choice(FIELDS["drafting.rule"].choices), help=_told("drafting.rule")),
    "exact": click.option("--exact/--no-exact", default=None, help=_told("drafting.exact")),
    "repeat_penalty": _sampling("repeat_penalty", float, "X"),
    "presence_penalty": _sampling("presence_penalty", float, "X"),
    "frequency_penalty": _sampling("frequency_penalty", float, "X"),
    "logit_bias": click.option(
        "--logit-bias",
        multiple=True,
        metavar="ID=B",
        callback=_biases,
        help="Add B to the logit of token ID; may be given more than once.",
    ),
}

_PERSONA = click.option(
    "--persona",
    metavar="NAME",
    callback=_name,
    shell_complete=complete_persona,
    help="A persona of the settings: system prompt, sampling, model and drafter.",
)
think_option = click.option("--think/--no-think", default=None, help=_told("chat.think"))


def engine_options(
    *,
    without: tuple[str, ...] = (),
    helps: Mapping[str, str] | None = None,
    measuring: bool = False,
    warn: bool = True,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the shared options to a command, which gets them folded into one `EngineOptions` named `options`.

    What was not typed comes from the settings: for a `measuring` command only what says which model it is and how it is
    loaded. Mistakes in the settings are told on stderr if `warn`. `helps`: what help says of an option, where it is not the
    same for this command.
    """
    names = [name for name in _OPTIONS if name not in without]
    sections = ("engine",) if measuring else tuple({field.section: None for field in FIELDS.values()})

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(**given: Any) -> Any:
            picked = {name: given.pop(name) for name in names}
            asked = Asked(_flags({**picked, "think": given.get("think")}), given.pop("persona", None), sections)
            options = _fold(picked, asked)
            if warn:
                warn_of(options.settings)
            if "think" in given:
                given["think"] = options.settings.get("chat.think")
            return function(options=options, **given)

        wrapped: Callable[..., Any] = call if measuring else _PERSONA(call)
        for name in reversed(names):
            wrapped = _OPTIONS[name](wrapped)
            option = wrapped.__click_params__[-1]  # type: ignore[attr-defined]  # where click keeps them for the command
            option.help = (helps or {}).get(name, option.help)
        return wrapped

    return decorate


def warn_of(settings: Settings) -> None:
    """Say on stderr what is wrong in the settings: the first of it, and where to see the rest."""
    if settings.faults:
        more = len(settings.faults) - 1
        say(f"Warning: {settings.faults[0]}", f"{more} more: outrider config check" if more else "")


def configured_model(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    """The model that was typed, else that of the settings."""
    return value or Asked(sections=("engine",)).settle().model().model


def loading_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how a model is loaded; the command gets them as a `ModelChoice` named `choice`, and `weights`."""
    names = ("device", "dtype", "quantize", "context")

    @functools.wraps(function)
    def call(**given: Any) -> Any:
        asked = Asked(_flags({name: given.pop(name) for name in names}), sections=("engine",))
        return function(choice=_settled(asked).model(), **given)

    wrapped: Callable[..., Any] = call
    for name in reversed((*names, "weights")):
        wrapped = _OPTIONS[name](wrapped)
    return wrapped


_PATHS = {
    "weights": "drafting.drafter_weights",
    "drafter_option": "drafting.drafter_options",
    **{field.name: field.path for field in FIELDS.values()},
}


def _flags(picked: dict[str, Any]) -> dict[str, Any]:
    """What was typed, by the path of its setting."""
    told = {name: value for name, value in picked.items() if value not in (None, (), {}) and name in _PATHS}
    return {_PATHS[name]: list(value) if isinstance(value, tuple) else value for name, value in told.items()}


def _settled(asked: Asked) -> Settings:
    try:
        return asked.settle()
    except LookupError as error:
        raise WrongUsage(*error.args) from None


def _fold(picked: dict[str, Any], asked: Asked) -> EngineOptions:
    typed = Sampling(**{name: picked[name] for name in _SAMPLING if name in picked})
    typed.stop = list(typed.stop)
    problem = typed.problem()
    if problem:
        raise WrongUsage(problem)
    settings = _settled(asked)
    drafter = settings.drafter()
    if picked.get("weights") and drafter.name == "none":
        raise WrongUsage("--drafter-weights needs a drafter, but --drafter is none.", "Try --drafter draft_model.")
    sampling = settings.sampling()
    sampling.logit_bias = typed.logit_bias
    return EngineOptions(
        model=settings.model(),
        drafter=drafter,
        sampling=sampling,
        system=settings.get("chat.system"),
        rule=settings.get("drafting.rule"),
        asked=asked,
        settings=settings,
    )
