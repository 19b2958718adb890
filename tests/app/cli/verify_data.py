"""What the fake engine says of a `Verify`: the model's name tells which verdicts there are."""

from __future__ import annotations

from typing import Any

from outrider.core.base import protocol as p

WRONG = {"near": ("near-tie",), "wrong": ("near-tie", "difference"), "unchecked": ("unchecked",)}


def result(request: p.Verify, *, stopped: bool) -> dict[str, Any]:
    """As `core.verify.run` gives it."""
    verdicts = WRONG.get(request.model.model, ())
    names = [choice.name for choice in request.drafters]
    answers = len(request.prompts)
    tallies = [
        {
            **{"drafter": name, "mode": "greedy", "answers": answers, "identical": answers - len(verdicts)},
            **{"near_ties": verdicts.count("near-tie"), "differences": verdicts.count("difference")},
            **{"unchecked": verdicts.count("unchecked"), "tokens": 640, "passes": 400, "tokens_per_pass": 1.575},
        }
        for name in names[:1]
    ]
    return {
        **{"model": request.model.model, "dtype": "bfloat16", "device": "cpu", "threads": 2},
        **{"exact": request.model.exact is not None, "rule": request.rule, "settings": {}},
        **{"finished": not stopped, "same": not stopped and not verdicts},
        "chat": chat(request.model.model == "stale"),
        "drafters": tallies,
        "partings": [parting(names[0], number, verdict) for number, verdict in enumerate(verdicts)],
    }


def chat(wrong: bool) -> dict[str, Any]:
    """One drafter's answers behind the cache; `wrong`: the edited one differs."""
    rows = [
        {
            "drafter": "none",
            "flow": "turn",
            "answers": 3,
            "identical": 3,
            "near_ties": 0,
            "differences": 0,
            "unchecked": 0,
        },
        {
            "drafter": "suffix",
            "flow": "edit",
            "answers": 1,
            "identical": 1,
            "near_ties": 0,
            "differences": 0,
            "unchecked": 0,
        },
    ]
    if not wrong:
        return {"drafters": rows, "partings": []}
    rows[1] |= {"identical": 0, "differences": 1}
    return {"drafters": rows, "partings": [parting("suffix", 1, "difference") | {"flow": "edit", "prompt": "chat"}]}


def parting(drafter: str, number: int, verdict: str) -> dict[str, Any]:
    """One of them; the second is an answer that ended early, in a second turn."""
    plain = {"id": 5, "text": " the\x1b[2J\n", "gap": 0.0123}
    drafted = {"id": None, "text": "", "gap": None} if number else {"id": 9, "text": " a", "gap": 0.03125}
    why = "The model could not be loaded in fp32: It does not fit." if verdict == "unchecked" else ""
    return {
        **{"drafter": drafter, "mode": "greedy", "prompt": "chat-tides", "turn": number, "token": 56},
        **{
            "plain": plain,
            "drafted": drafted,
            "gap": None if why else 0.00412 + number,
            "verdict": verdict,
            "why": why,
        },
    }
