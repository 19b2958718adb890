"""What a run is made of, settled from what was asked: recipe, options, the parts of its data, its steps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec
import torch

from outrider.core.base.errors import DrafterError, UsageError
from outrider.core.base.protocol import TrainOrder, TrainPrompt
from outrider.core.drafting import registry

from .answers import TURNS, Kept
from .loop import Schedule, in_epoch
from .plan import HELD, Plan
from .recipe import Labeller, Recipe, Trainee

MANY, HELD_OF_FEW = 400, 8  # of fewer prompts than those one in so many is not trained on
STEP, RATE = 512, 1e-3  # where nothing is said
GENTLE = 2.5e-4  # the same of a drafter that has learnt: at the other rate it forgets more in its first steps than it regains
SMALL, STEPS = 256, 400  # tokens of a step where there is little to learn from: rather that than fewer steps
HEAVY = 4  # how much more a token of an answer counts among words than one of a prompt


def recipe_of(method: str) -> Recipe:
    """How the drafters of a method are trained. Raises UsageError naming those that can be."""
    recipe = registry.extra(registry.named(method), "recipe")
    if recipe is None:
        names = list[str]()
        for one in registry.entries():
            with suppress(DrafterError):  # a broken one has nothing to train
                names += [one.name] if registry.trains(one) else []
        raise UsageError(f"The method {method} has nothing to train.", f"These have: {', '.join(names)}.")
    return recipe


def settings_of(recipe: Recipe, order: TrainOrder) -> msgspec.Struct:
    """The method's options as it means them. Raises UsageError naming what is wrong, and what there is."""
    known = {field.name: field for field in msgspec.structs.fields(recipe.settings)}
    strange = sorted(set(order.options) - set(known))
    if strange:
        raise UsageError(f"{order.method} has no option {strange[0]}.", f"It has: {', '.join(known)}.")
    told: dict[str, object] = {
        name: value.split(",") if "," in value else value for name, value in order.options.items()
    }
    try:
        return msgspec.convert(told, recipe.settings, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"The options of {order.method}: {error}.", "See `outrider train --help`.") from error


def parted(texts: Sequence[Kept]) -> tuple[list[Kept], list[Kept]]:
    """Texts to measure with, and texts to learn from; those of one prompt stay together."""
    every = HELD if len({text.number // TURNS for text in texts}) >= MANY else HELD_OF_FEW
    held = [text for text in texts if text.number // TURNS % every == 0]
    return held, [text for text in texts if text.number // TURNS % every]


def schedule_of(plan: Plan, texts: Sequence[Kept]) -> Schedule:
    """The steps of a run whose data is there."""
    order = plan.order
    lengths = [len(text.ids) - text.first for text in texts]
    tokens = order.step_tokens or between(plan.epochs * sum(lengths) / STEPS, (SMALL, STEP))
    steps = max(1, round(plan.epochs * in_epoch(lengths, tokens, order.seed)))
    return Schedule(
        steps=steps,
        tokens=tokens,
        rate=order.rate or (RATE if order.continue_from is None else GENTLE),
        warm=min(100, max(1, steps // 20)),
        seed=order.seed,
        threads=plan.threads,
    )


def counts_of(texts: Sequence[Kept], vocab: int) -> torch.Tensor:
    """How often each token stands in the data [V], answers weighing more."""
    every = torch.tensor([token for text in texts for token in text.ids])
    answers = torch.tensor([token for text in texts for token in text.ids[text.first :]])
    count = torch.bincount(every, minlength=vocab) + (HEAVY - 1) * torch.bincount(answers, minlength=vocab)
    return count[:vocab]


def learnt(text: Kept) -> int:
    """Tokens of a text that are to be learnt."""
    return len(text.ids) - text.first


def labeller_of(trainee: Trainee) -> Labeller | None:
    """The trainee, if it wants labels."""
    return trainee if isinstance(trainee, Labeller) else None


def words_of(prompt: TrainPrompt) -> str:
    """The text of a prompt."""
    return prompt.text or "\n".join(message.content for message in prompt.messages or [])


def between(count: float, bounds: tuple[int, int]) -> int:
    """A count within bounds."""
    return max(bounds[0], min(bounds[1], int(count)))
