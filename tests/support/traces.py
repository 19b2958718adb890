"""Traces for the scripted engine: lines of what it says, made from words and kinds of tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

LOADED = {
    "model": "starter",
    "title": "Tiny Test 1M",
    "family": "llama",
    "parameters": 1,
    "nbytes": 1,
    "dtype": "fp32",
    "device": "cpu",
    "threads": 1,
    "context": 256,
    "chat": True,
    "load_s": 0.0,
    "sampling": {"temperature": 0.7},
    "drafters": [
        {"name": "prompt_lookup", "fit": "any", "reason": "repeats the chat", "usable": True},
        {"name": "draft_model", "fit": "no", "reason": "needs weights", "usable": False},
        {"name": "suffix", "fit": "any", "reason": "", "usable": True},
    ],
}


def step(
    seq: int,
    at: float,
    tokens: Sequence[tuple[str, str]],
    drafter: str = "prompt_lookup",
    thinking: bool = False,
) -> dict[str, Any]:
    """A `Step` of `(text, kind)` tokens as a line of a trace."""
    accepted = sum(kind == "A" for _, kind in tokens)
    frame = {
        "type": "Step",
        "request": 0,
        "seq": seq,
        "t": at,
        "drafter": drafter,
        "proposed": accepted + sum(kind == "C" for _, kind in tokens),
        "accepted": accepted,
        "tokens": [{"id": 7, "text": text, "kind": kind, "thinking": thinking} for text, kind in tokens],
        "draft_ms": 0.1,
        "verify_ms": 1.0,
        "host_ms": 0.1,
    }
    return {"on": "generate", "at": at, "frame": frame}


def end() -> dict[str, Any]:
    """The `Done` of an answer; the scripted engine fills in the report."""
    timing = dict.fromkeys(("load_s", "prefill_s", "first_token_s", "decode_s", "draft_s", "verify_s"), 0.0)
    report = {
        "model": "starter",
        "drafter": "auto",
        "rule": "match",
        "seed": 1,
        "text": "",
        "token_ids": [],
        "prompt_tokens": 5,
        "finish": "stop",
        "passes": 0,
        "proposed": 0,
        "accepted": 0,
        "kinds": "",
        "timing": timing,
        "tokens_per_second": 0.0,
        "drafters": {},
        "speedup": None,
    }
    return {"on": "generate", "at": 0.0, "frame": {"type": "Done", "request": 0, "finish": "stop", "report": report}}


def answer(text: str, kinds: str = "P", pause: float = 0.0) -> list[dict[str, Any]]:
    """A whole answer: words of `text` with these kinds in turn, three words a pass, `pause` seconds apart."""
    words = re.findall(r"\s*\S+|\s+$", text)
    tokens = [(word, kinds[n % len(kinds)]) for n, word in enumerate(words)]
    lines = [step(n, n * pause, tokens[3 * n : 3 * n + 3]) for n in range((len(tokens) + 2) // 3)]
    last = end()
    last["at"] = len(lines) * pause
    return [*lines, last]


def thoughtful(thought: str, text: str, kinds: str = "P", pause: float = 0.0) -> list[dict[str, Any]]:
    """An answer with a thought before it, both as in `answer`, and an empty token of each marker."""
    marker = [step(0, 0.0, [("", "P")], thinking=True)]
    thinks = answer(thought, kinds, pause)[:-1]
    for line in thinks:
        for token in line["frame"]["tokens"]:
            token["thinking"] = True
    lines = [*marker, *thinks, *marker, *answer(text, kinds, pause)]
    made = [json.loads(json.dumps(line)) for line in lines]
    for seq, line in enumerate(made):
        line["at"] = seq * pause
        if line["frame"]["type"] == "Step":
            line["frame"] |= {"seq": seq, "t": seq * pause}
    return made


def loading() -> list[dict[str, Any]]:
    """Loading with one progress line half-way."""
    progress = {"type": "Progress", "request": 0, "phase": "reading weights", "done": 43, "total": 100, "unit": "bytes"}
    return [
        {"on": "load", "at": 0.0, "frame": progress},
        {"on": "load", "at": 0.0, "frame": {"type": "Result", "request": 0, "data": LOADED}},
    ]


def fails(message: str, hint: str = "") -> list[dict[str, Any]]:
    """An answer that is refused."""
    frame = {"type": "Failed", "request": 0, "message": message, "hint": hint, "usage": True}
    return [{"on": "generate", "at": 0.0, "frame": frame}]


def notices(text: str) -> list[dict[str, Any]]:
    """Something the engine has to say in an answer; more lines must follow."""
    return [{"on": "generate", "at": 0.0, "frame": {"type": "Notice", "request": 0, "text": text}}]


def written(*parts: Sequence[dict[str, Any]]) -> str:
    """These lines as a trace file."""
    return "".join(json.dumps(line) + "\n" for part in parts for line in part)
