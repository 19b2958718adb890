"""The options that `chat`, `run` and `bench` share, checked before an engine starts."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from outrider.app.render import WrongUsage
from outrider.core.protocol import DrafterChoice, ModelChoice, Sampling

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
_SAMPLING = tuple(Sampling.__struct_fields__)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the user asked of the engine, in the shapes that requests carry."""

    model: ModelChoice
    drafter: DrafterChoice
    sampling: Sampling
    system: str | None = None
    rule: str = "match"


def _name(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise WrongUsage(f"{parameter.opts[0]} must not be empty.")
    return value


def _drafter(context: click.Context, parameter: click.Parameter, value: str) -> str:
    return str(_name(context, parameter, value)).strip().replace("-", "_")


def _device(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not _DEVICE.fullmatch(value):
        raise WrongUsage(f"--device must be auto, cpu, cuda or cuda:N, not {value!r}.")
    return value


def _biases(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[int, float]:
    biases = {}
    for value in values:
        token, equals, bias = value.partition("=")
        try:
            biases[int(token)] = float(bias)
        except ValueError:
            equals = ""
        if not equals:
            raise WrongUsage(f"--logit-bias must be ID=B, a token id and a number such as 42=-5, not {value!r}.")
    return biases


def _settings(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """NAME=VALUE, where a value that is JSON (8, 0.5, true) is read as such."""
    found: dict[str, Any] = {}
    for value in values:
        name, equals, told = value.partition("=")
        if not equals or not name.strip():
            raise WrongUsage(f"--drafter-option must be NAME=VALUE, such as tree=chain, not {value!r}.")
        try:
            found[name.strip()] = json.loads(told)
        except ValueError:
            found[name.strip()] = told
    return found


_POSITIVE = click.IntRange(min=1)
drafter_option = click.option(
    "--drafter-option",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_settings,
    help="A setting of the drafter's own, such as tree=chain or corpus=notes.txt; may be given more than once.",
)
_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "model": click.option(
        "--model",
        "-m",
        default="starter",
        show_default=True,
        metavar="M",
        callback=_name,
        help="A folder or file, a name from `outrider models list`, or a hub id: org/name, org/name:Q8_0, org/name@revision.",
    ),
    "drafter": click.option(
        "--drafter",
        "-d",
        default="auto",
        show_default=True,
        metavar="D",
        callback=_drafter,
        help="Who drafts: auto, none, or a name from `outrider drafters list`.",
    ),
    "weights": click.option(
        "--drafter-weights",
        "weights",
        metavar="PATH|HUB_ID",
        callback=_name,
        help="Weights for the drafter: a folder, a hub id (with @REVISION), or the name of a published drafter.",
    ),
    "drafter_option": drafter_option,
    "draft_tokens": click.option(
        "--draft-tokens",
        type=click.IntRange(1, 1024),
        metavar="K",
        help="Draft exactly K tokens a round.  [default: chosen by measurement]",
    ),
    "temperature": click.option(
        "--temperature",
        type=float,
        metavar="T",
        help="0 is greedy, 0.7 usual, above 1 wild.  [default: the model's own]",
    ),
    "top_p": click.option(
        "--top-p",
        type=float,
        metavar="P",
        help="Keep the likeliest tokens up to mass P.  [default: the model's own]",
    ),
    "top_k": click.option(
        "--top-k", type=int, metavar="N", help="Keep the N likeliest tokens.  [default: the model's own]"
    ),
    "min_p": click.option(
        "--min-p",
        type=float,
        metavar="P",
        help="Drop tokens below P times the likeliest one's probability.  [default: the model's own]",
    ),
    "seed": click.option(
        "--seed",
        type=int,
        metavar="N",
        help="Same seed, same text, whoever drafts.  [default: a fresh one]",
    ),
    "max_tokens": click.option(
        "--max-tokens", type=int, metavar="N", help="Stop after N tokens.  [default: no limit but the context]"
    ),
    "stop": click.option("--stop", multiple=True, metavar="TEXT", help="Stop before this text; may be repeated."),
    "system": click.option("--system", "-s", metavar="TEXT", help="System prompt.  [default: the model's own]"),
    "device": click.option(
        "--device", default="auto", show_default=True, metavar="D", callback=_device, help="auto, cpu, cuda or cuda:N."
    ),
    "dtype": click.option(
        "--dtype",
        type=click.Choice(["auto", "fp32", "bf16", "fp16"]),
        default="auto",
        show_default=True,
        help="What the model computes in.",
    ),
    "quantize": click.option(
        "--quantize",
        type=click.Choice(["auto", "none", "int8", "int4"]),
        default="auto",
        show_default=True,
        help="Round the weights while loading: half or a quarter of the memory, a little less exact. "
        "auto keeps them as they are stored, none expands quantised ones.",
    ),
    "context": click.option(
        "--context",
        type=_POSITIVE,
        metavar="N",
        help="Tokens of context.  [default: what model and memory allow]",
    ),
    "threads": click.option("--threads", type=_POSITIVE, metavar="N", help="CPU threads.  [default: chosen]"),
    "rule": click.option(
        "--rule",
        type=click.Choice(["match", "rejection", "typical"]),
        default="match",
        show_default=True,
        help="How drafts are accepted. match and rejection are lossless; with match even the text does not depend on the "
        "drafter. typical is LOSSY: it keeps whatever the model finds likely enough.",
    ),
    "repeat_penalty": click.option(
        "--repeat-penalty",
        type=float,
        metavar="X",
        help="Above 1 makes repetition rarer.  [default: the model's own]",
    ),
    "presence_penalty": click.option(
        "--presence-penalty", type=float, metavar="X", help="Taken off every token that was used.  [default: 0]"
    ),
    "frequency_penalty": click.option(
        "--frequency-penalty", type=float, metavar="X", help="Taken off for each time a token was used.  [default: 0]"
    ),
    "logit_bias": click.option(
        "--logit-bias",
        multiple=True,
        metavar="ID=B",
        callback=_biases,
        help="Add B to the logit of token ID; may be given more than once.",
    ),
}

think_option = click.option(
    "--think/--no-think",
    default=None,
    help="Have the model think before it answers, or not, where it lets you choose; else it does as it is used to.",
)


def engine_options(*, without: tuple[str, ...] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the shared options to a command, which gets them folded into one `EngineOptions` named `options`."""
    names = [name for name in _OPTIONS if name not in without]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(**given: Any) -> Any:
            picked = {name: given.pop(name) for name in names}
            return function(options=_fold(picked), **given)

        wrapped: Callable[..., Any] = call
        for name in reversed(names):
            wrapped = _OPTIONS[name](wrapped)
        return wrapped

    return decorate


def loading_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how a model is loaded; the command gets them as a `ModelChoice` named `choice`, and `weights`."""
    names = ("device", "dtype", "quantize", "context")

    @functools.wraps(function)
    def call(**given: Any) -> Any:
        return function(choice=ModelChoice(**{name: given.pop(name) for name in names}), **given)

    wrapped: Callable[..., Any] = call
    for name in reversed((*names, "weights")):
        wrapped = _OPTIONS[name](wrapped)
    return wrapped


def _fold(picked: dict[str, Any]) -> EngineOptions:
    sampling = Sampling(**{name: picked[name] for name in _SAMPLING if name in picked})
    sampling.stop = list(sampling.stop)
    problem = sampling.problem()
    if problem:
        raise WrongUsage(problem)
    if picked["weights"] and picked["drafter"] == "none":
        raise WrongUsage("--drafter-weights needs a drafter, but --drafter is none.", "Try --drafter draft_model.")
    return EngineOptions(
        model=ModelChoice(**{name: picked[name] for name in ModelChoice.__struct_fields__}),
        drafter=DrafterChoice(
            name=picked["drafter"],
            weights=picked["weights"],
            tokens=picked["draft_tokens"],
            options=picked["drafter_option"],
        ),
        sampling=sampling,
        system=picked.get("system"),
        rule=picked.get("rule", "match"),
    )
