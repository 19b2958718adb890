"""Several answers of a toy target at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import toys

from outrider.core.base.protocol import DrafterChoice, Event, Report
from outrider.core.drafting.active import ActiveDrafter
from outrider.core.model.model import TargetModel
from outrider.core.policy.policy import Policy
from outrider.core.session.answer import AnswerRequest
from outrider.core.session.batch import Batch


def order(number: int, ids: Sequence[int], **settings: Any) -> AnswerRequest:
    """What an answer is made from: greedy, with drafts of 4 tokens, unless `settings` say otherwise."""
    values: dict[str, Any] = {
        "request": number,
        "model": "toy",
        "ids": list(ids),
        "settings": toys.GREEDY,
        "seed": 100 + number,
        "rule": "match",
        "drafter": DrafterChoice(name="toy", tokens=settings.pop("tokens", 4)),
        "eos": frozenset(),
        "pieces": toys.Letters(),
        "decode": lambda some: "".join(f"<{i}>" for i in some),
    }
    return AnswerRequest(**{**values, **settings})


def together(
    target: TargetModel,
    orders: Sequence[AnswerRequest],
    riders: Sequence[ActiveDrafter | None] | None = None,
    *,
    at_once: int | None = None,
    say: Callable[[Event], None] = lambda event: None,
    control: toys.Still | None = None,
    policy: Policy | None = None,
) -> list[Report]:
    """The reports of all; `riders` are forked."""
    pairs = list(zip(orders, riders or [None] * len(orders), strict=True))
    return Batch(target, policy or Policy(), pairs, say).run(control or toys.Still(), at_once)


def most_at_once(events: Sequence[Event]) -> int:
    """How many answers had begun and not ended, at most."""
    live, most = set[int](), 0
    for event in events:
        name, request = type(event).__name__, getattr(event, "request", None)
        if name == "Step" and isinstance(request, int):
            live.add(request)
        elif name == "Done" and isinstance(request, int):
            live.discard(request)
        most = max(most, len(live))
    return most
