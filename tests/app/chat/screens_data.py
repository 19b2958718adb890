"""Models, drafters and downloads as a scripted engine tells them."""

from __future__ import annotations

from typing import Any

from chat_support import LOADED

from outrider.core.base import protocol
from outrider.core.base.protocol import DrafterRow, KnownDrafter, MemoryPlan, ModelRow

GB = 1_000_000_000


def plan(total: float, free: float | None = 16, device: str = "cpu") -> MemoryPlan:
    """A memory plan in GB."""
    made = MemoryPlan(
        device=device,
        dtype="bf16",
        quantize="auto",
        context=8192,
        weights=int((total - 0.5) * GB),
        states=int(0.2 * GB),
        overhead=int(0.3 * GB),
        total=int(total * GB),
        free=None if free is None else int(free * GB),
    )
    if made.free is not None:
        made.verdict = "fits" if made.total <= made.free else "no"
    return made


STARTER = ModelRow(
    name="starter",
    title="SmolLM2-135M",
    path="/models/starter.gguf",
    nbytes=98_000_000,
    format="gguf",
    quantisation="Q4_1",
    source="library",
    license="Apache-2.0",
    plan=plan(0.6),
)
OLLAMA = ModelRow(
    name="ollama:tiny:1b",
    path="/o/blob",
    nbytes=GB,
    format="gguf",
    quantisation="Q4_K_M",
    source="ollama",
    plan=plan(1.6),
)
SMALL = ModelRow(
    name="small-2b",
    title="Small 2B",
    nbytes=4 * GB,
    tier=1,
    series="Small",
    license="MIT",
    parameters=2 * GB,
    form="bf16",
    drafters=[KnownDrafter(method="mtp")],
    plan=plan(5),
)
MIDDLE = ModelRow(
    name="middle-4b",
    nbytes=8 * GB,
    tier=1,
    parameters=4 * GB,
    form="bf16",
    about=True,
    drafters=[KnownDrafter(method="dflash", repo="lab/Middle-DFlash", nbytes=2 * GB, license="MIT")],
    plan=plan(9),
)
HUGE = ModelRow(
    name="huge-70b",
    nbytes=140 * GB,
    tier=2,
    parameters=70 * GB,
    form="bf16",
    plan=plan(142),
    partial=3 * GB,
    gated=True,
)
ODD = ModelRow(
    name="odd-1b", nbytes=2 * GB, tier=3, unsupported="the architecture odd is not supported yet", plan=plan(3)
)
BROKEN = ModelRow(name="broken", path="/models/broken", nbytes=9, source="library", problem="It is cut off.")
ROWS = [HUGE, MIDDLE, ODD, SMALL, OLLAMA, BROKEN, STARTER]

DRAFTERS = [
    DrafterRow(
        name="prompt_lookup", distribution="outrider", version="1", fit="any", reason="repeats the chat", usable=True,
        trusted=True, free=True, choice="1.9 tokens a pass at 1.1x the cost, 1.7x plain; 61% of first tokens accepted",
    ),
    DrafterRow(name="suffix", distribution="outrider", fit="any", usable=True, free=True),
    DrafterRow(
        name="dflash", distribution="outrider", fit="exact", reason="needs weights made for it", where="catalogue",
        known=[
            KnownDrafter(method="dflash", repo="lab/Tiny-DFlash", nbytes=300_000_000, license="MIT"),
            KnownDrafter(method="dflash", repo="lab/Here-DFlash", nbytes=300_000_000, path="/models/lab--Here-DFlash"),
        ],
    ),
    DrafterRow(name="eagle", distribution="outrider", fit="family", where="library", usable=True, nbytes=500_000_000,
               weights="/models/eagle", gain=2.5),
    DrafterRow(name="medusa", distribution="outrider", fit="exact", where="train", reason="needs heads"),
    DrafterRow(name="layerskip", distribution="outrider", fit="no", reason="the model was not trained for it"),
    DrafterRow(name="boom", distribution="outrider-boom", version="0.3", fit="broken", reason="ImportError: no boom"),
]  # fmt: skip
TRIAL: dict[str, Any] = {
    "reading": {},
    **{"prompts": 4, "answers": 4, "tokens": 64, "passes": 40, "rounds": 20, "proposed": 60, "accepted": 30},
    **{"reached": [20, 10], "depths": [0.75, 0.5], "mean_accepted": 1.5, "error": 0.1, "tokens_per_pass": 1.55},
    **{"draft_ms": 1.25, "verify_ms": 9.0, "plain_ms": 8.0, "same_text": 4, "problem": "", "differences": []},
}
TESTED = {
    **{"drafter": "suffix", "weights": None, "model": "starter", "device": "cpu", "dtype": "bf16"},
    "trials": [TRIAL],
    "best": 0,
}


def told(on: str, data: Any, at: float = 0.0) -> dict[str, Any]:
    """The result of a request as a line of a trace."""
    return {"on": on, "at": at, "frame": {"type": "Result", "request": 0, "data": protocol.plain(data)}}


def refused(on: str, message: str, hint: str = "") -> dict[str, Any]:
    """A request that fails."""
    return {
        "on": on,
        "at": 0.0,
        "frame": {"type": "Failed", "request": 0, "message": message, "hint": hint, "trace": "T"},
    }


def moving(on: str, done: float, total: float, at: float, unit: str = "bytes") -> dict[str, Any]:
    """How far a request is."""
    frame = {"type": "Progress", "request": 0, "phase": "download", "done": done, "total": total, "unit": unit}
    return {"on": on, "at": at, "frame": frame}


def loads(title: str, **told_also: Any) -> dict[str, Any]:
    """Another model is loaded."""
    return told("load", LOADED | {"title": title} | told_also)
