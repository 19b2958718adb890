"""Every figure that the panel shows, at one moment: gathered from session, reply and tally. Knows no widgets."""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.app.chat.meter import main_drafter, mean_per_pass, plain_time, times
from outrider.app.chat.session import Session
from outrider.app.chat.stats.tally import Share, Tally, Totals
from outrider.app.chat.talk import End, Reply
from outrider.core.base.protocol import MemoryPlan, Speedup

ENOUGH = 8  # plain passes from which a speed-up counts
_PHASES = {"json": "code"}  # what is shown as another


@dataclass(frozen=True, slots=True)
class Figures:
    """None and 0 are not known. `now` is of the last 2 seconds, `mean` of the whole reply.

    `of` says of which reply they are, and who drafted it; `unmeasured`: that was not the drafter which is chosen now.
    """

    drafter: str
    choice: str  # auto, pinned or off
    state: str  # running, parked, off, unavailable, ready
    reason: str = ""
    rate: float | None = None
    rate_mean: float | None = None
    per_pass: float | None = None
    per_pass_mean: float | None = None
    proposed: int = 0
    accepted: int = 0
    ignored: int = 0
    depths: tuple[tuple[float, int], ...] = ()
    ms: tuple[float, float, float] | None = None
    drafted: Share = field(default_factory=Share)
    plain: Share = field(default_factory=Share)
    first_token_s: float = 0.0
    prefill_rate: float = 0.0
    times: float | None = None  # plain decoding, where it is sure
    times_now: float | None = None
    estimate: float | None = None  # of the whole reply, sure or not
    error: float = 0.0
    n: int = 0
    phases: tuple[tuple[str, float], ...] = ()
    history: tuple[float, ...] = ()
    memory: MemoryPlan | None = None
    drafter_bytes: int = 0
    context: int = 0
    context_most: int = 0
    running: bool = False
    of: str = ""
    unmeasured: bool = False


def gather(session: Session, reply: Reply | None, tally: Tally | None) -> Figures:
    """The figures of a reply, or of a chat that has none yet. `tally` is None for one that was only read from the store."""
    loaded = session.loaded
    name, choice, state, reason = who(session, reply)
    row = next((row for row in loaded.drafters if row.name == name), None) if loaded else None
    told: dict[str, object] = {
        "drafter": name,
        "choice": choice,
        "state": state,
        "reason": reason,
        "memory": loaded.memory if loaded else None,
        "drafter_bytes": row.nbytes if row else 0,
        "context_most": loaded.context if loaded else 0,
    }
    if reply is not None:
        told |= _of_reply(reply)
        told |= {"of": of_words(reply), "unmeasured": not drafted_in(reply, session.drafter.name)}
        told["context"] = context_of(reply, tally)
        if tally is not None:
            told |= _of_tally(reply, tally)
    return Figures(**told)  # type: ignore[arg-type]


def context_of(reply: Reply | None, tally: Tally | None) -> int:
    """Tokens that the model holds after or in a reply; 0 where that is not known."""
    if reply is None:
        return 0
    if reply.report is not None:
        return reply.report.prompt_tokens + len(reply.report.token_ids)
    return tally.context if tally is not None else 0


def drafted_in(reply: Reply, name: str) -> bool:
    """Whether what was measured in a reply tells of a drafter: it had a part in it, or was asked for."""
    asked = reply.settings.drafter.name if reply.settings is not None else ""
    return name in ("auto", "none", asked) or name in _drafters(reply)


def _drafters(reply: Reply) -> list[str]:
    """Who had a part in a reply, the one with most passes first."""
    counted = reply.report.drafters if reply.report is not None else dict.fromkeys(reply.drafters, 1)
    names = [name for name, passes in counted.items() if passes and name != "none"]
    return sorted(names, key=lambda name: -counted[name])


def of_words(reply: Reply) -> str:
    """`last reply: suffix`, and how many others drafted in it."""
    names = _drafters(reply)
    whose = "this reply" if reply.end is End.NOT_YET else "last reply"
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    return f"{whose}: {names[0] if names else 'plain'}{more}"


def who(session: Session, reply: Reply | None) -> tuple[str, str, str, str]:
    """Drafter, how it was chosen, what it does now, and why."""
    chosen = session.drafter.name
    if chosen == "none":
        return "no drafter", "off", "off", "You switched drafting off; one token a pass."
    choice = "auto" if chosen == "auto" else "pinned"
    rows = session.loaded.drafters if session.loaded else []
    row = next((row for row in rows if row.name == chosen), None)
    if row is not None and not row.usable:
        return chosen, choice, "unavailable", row.reason
    if reply is not None and not drafted_in(reply, chosen):
        return chosen, choice, "ready", f"{chosen}: nothing measured yet. The figures are of the {of_words(reply)}"
    if reply is None or not reply.meter.drafter:
        past = main_drafter(reply.report) if reply is not None and reply.report is not None else ""
        known = past if past not in ("", "none") else chosen
        return known, choice, "ready", row.reason if row is not None else ""
    name = reply.meter.drafter if chosen == "auto" and not reply.meter.parked else chosen
    state = "parked" if reply.meter.parked else "running" if reply.end is End.NOT_YET else "ready"
    return name, choice, state, reply.meter.why


def _of_reply(reply: Reply) -> dict[str, object]:
    report = reply.report
    told: dict[str, object] = {"running": reply.end is End.NOT_YET}
    if report is None:
        return told | {"rate": reply.meter.tokens_per_second, "per_pass": reply.meter.tokens_per_pass}
    told |= {
        "rate": reply.meter.tokens_per_second,
        "rate_mean": report.tokens_per_second or None,
        "per_pass": reply.meter.tokens_per_pass,
        "per_pass_mean": mean_per_pass(report),
        "proposed": report.proposed,
        "accepted": report.accepted,
        "first_token_s": report.timing.first_token_s,
    }
    if report.timing.prefill_s > 0:
        told["prefill_rate"] = (report.prompt_tokens - report.reused) / report.timing.prefill_s
    plain, seconds = plain_time(report), report.timing.decode_s
    if plain is not None and seconds > 0:
        told |= _against(Speedup(plain.seconds / seconds, plain.error / seconds, plain.n))
    return told


def _against(made: Speedup) -> dict[str, object]:
    """A comparison with plain passes; only what is sure is a figure."""
    return {"times": made.value if made.sure else None, "estimate": made.value, "error": made.error, "n": made.n}


def _of_tally(reply: Reply, tally: Tally) -> dict[str, object]:
    told: dict[str, object] = {
        "ignored": tally.ignored,
        "depths": tuple(tally.depths),
        "ms": tally.all.ms if tally.all.passes else None,
        "drafted": tally.drafted,
        "plain": tally.plain,
        "phases": _phases(tally),
        "history": tuple(tally.history),
    }
    if reply.report is None:
        told |= {
            "rate_mean": tally.rate or None,
            "per_pass_mean": tally.all.tokens_per_pass or None,
            "proposed": tally.proposed,
            "accepted": tally.accepted,
            "first_token_s": tally.first_token_s,
            "prefill_rate": tally.prefill_rate,
        }
    measured, rate = tally.measured, reply.meter.tokens_per_second
    if measured is not None and tally.proposed:
        if rate:
            told["times_now"] = measured.ms * rate / 1000
        if tally.rate and reply.report is None:  # which says it for the whole reply
            scale = tally.rate / 1000
            told |= _against(Speedup(measured.ms * scale, measured.error * scale, measured.n))
    return told


def _phases(tally: Tally) -> tuple[tuple[str, float], ...]:
    sums: dict[str, Share] = {}
    for phase, share in tally.phases.items():
        known = sums.setdefault(_PHASES.get(phase, phase), Share())
        known.passes += share.passes
        known.tokens += share.tokens
    return tuple((phase, sums[phase].tokens_per_pass) for phase in ("prose", "code", "thinking") if phase in sums)


def session_words(totals: Totals, *, panel: bool = False) -> str:
    """What all replies since the start add up to, in a line; the shorter one of the panel begins with how many they are."""
    if not totals.replies:
        return "no reply yet"
    words = f"{totals.replies} {'replies' if totals.replies != 1 else 'reply'}"
    parts = [f"{totals.replies}:" if panel else words]
    if totals.tokens_per_pass:
        parts.append(f"{totals.tokens_per_pass:.1f}/pass")
    if totals.rate:
        parts.append(f"{totals.rate:.0f} tok/s")
    if totals.speedup is not None:
        error = "" if panel else f" ±{totals.speedup.error:.2f}"
        parts.append(times(totals.speedup.value) + error)
    return (" " if panel else " · ").join(parts)
