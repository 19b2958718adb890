"""What the files of an EAGLE draft leave open, so that writers and servers of them differ. Loads no torch.

Layers nested in `eagle_config` count from one end or the other (`format.counts_outputs`). SpecForge writes `norm_output` into
EAGLE-3.1 files that it trained with the output fed back before the norm, and servers feed it back after it. An old file of
speculators does not say whether the residual takes the normed state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from outrider.core.base.errors import UsageError
from outrider.core.drafting import ModelInfo

from .format import Container

STATES = ("output", "boundary")
FEEDBACK = {"auto": None, "postnorm": True, "prenorm": False}
RESIDUAL = {"auto": None, "normed": True, "plain": False}


def readings(config: Mapping[str, Any], container: Container, model: ModelInfo) -> list[Mapping[str, object]]:
    """Options for each way that the files may be meant, first the one that is taken unless told otherwise."""
    ways: dict[str, list[str]] = {}
    if container.told and container.telling == "nested":
        known = {name: counted(container, name) for name in STATES}
        usual = container.states(model)
        ways["states"] = sorted(
            (name for name, states in known.items() if states[-1] <= model.layers),
            key=lambda name: known[name] != usual,
        )
    nested, chains = "speculators_model_type" in config, container.mask is None
    if config.get("norm_output") and not nested and chains:
        ways["feedback"] = _first(FEEDBACK, container.norm_output)
    if nested and "norm_before_residual" not in config and container.version == 3 and chains:
        ways["residual"] = _first(RESIDUAL, container.norm_before_residual)
    return [dict(zip(ways, chosen, strict=True)) for chosen in product(*ways.values())]


def counted(container: Container, name: str) -> tuple[int, ...]:
    """States that the numbers in the config mean if they count outputs of layers, or boundaries between them."""
    return tuple(number + (name == "output") for number in sorted(container.told))


def read_as(container: Container, options: Mapping[str, object]) -> Container:
    """The files as the options `feedback` and `residual` have them. Raises UsageError for another value than theirs."""
    feedback, residual = _told(options, "feedback", FEEDBACK), _told(options, "residual", RESIDUAL)
    return replace(
        container,
        norm_output=container.norm_output if feedback is None else feedback,
        norm_before_residual=container.norm_before_residual if residual is None else residual,
    )


def states_read(container: Container, model: ModelInfo, options: Mapping[str, object]) -> tuple[int, ...]:
    """States that are read, as the option `states` has it. Raises UsageError for what is none, or is not as many."""
    told = str(options.get("states", "") or "")
    if not told:
        return container.states(model)
    if told in STATES and not container.told:
        raise UsageError(f"The option states is {told!r}.", f"{container.name} names no layers; leave it out.")
    numbers = counted(container, told) if told in STATES else _numbers(told)
    if not all(0 <= number <= model.layers for number in numbers):
        raise UsageError(
            f"The option states is {told!r}.",
            f"Use output, boundary, or numbers from 0 to {model.layers}, as in 2,4,5.",
        )
    if len(numbers) != container.count(model.width):
        raise UsageError(
            f"The option states names {len(numbers)} states; {container.name} reads another number.", "Leave it out."
        )
    return numbers


def _numbers(told: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else -1 for part in told.split(","))


def _first(ways: Mapping[str, bool | None], usual: bool) -> list[str]:
    return sorted((name for name in ways if ways[name] is not None), key=lambda name: ways[name] != usual)


def _told(options: Mapping[str, object], name: str, ways: Mapping[str, bool | None]) -> bool | None:
    told = str(options.get(name, "auto"))
    if told not in ways:
        raise UsageError(f"The option {name} is {told!r}.", f"Use one of: {', '.join(ways)}.")
    return ways[told]
