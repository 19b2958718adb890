"""The line at the bottom that is always there: model, drafter, speed, state, and keys where there is room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from textual.content import Content
from textual.widget import Widget

from outrider.app.chat.clean import harmless
from outrider.app.chat.keymap import Keymap, build, short
from outrider.app.chat.meter import brief, main_drafter, mean_per_pass, size, speed, times
from outrider.app.chat.session import BUSY, Session, State
from outrider.app.chat.stats.figures import drafted_in
from outrider.core.base.protocol import Progress

_GAP = " · "
_NARROW = 80  # columns of the window, below which there is room for few keys
Mode = tuple[str, list[tuple[str, str]]]
"""What letters work on, and what they do; the last one leads back to the prompt."""
_FEW = ("help", "next_drafter", "marks", "leader")


@dataclass(frozen=True, slots=True)
class Chip:
    """A few words; those with the lowest weight go first when the line is too short. In a narrow window those that yield
    make room for the keys."""

    text: str
    weight: int
    style: str = ""
    yields: bool = False
    model: bool = False  # says which one; a header says it better


def one_line(text: str) -> str:
    """Words from elsewhere, safe for a single line."""
    return harmless(" ".join(text.split()))


def progress_words(progress: Progress) -> str:
    """`weights 43%`, or bytes where the total is not known."""
    if progress.total > 0:
        return f"{progress.phase} {min(100.0, 100 * progress.done / progress.total):.0f}%"
    if progress.done > 0:
        amount = size(progress.done) if progress.unit == "bytes" else f"{progress.done:.0f} {progress.unit}".rstrip()
        return f"{progress.phase} {amount}"
    return progress.phase


def state_words(session: Session) -> str:
    """`ready`, `loading · weights 43%` and the like."""
    words = session.state.value
    if session.progress is not None and session.state in (State.LOADING, State.THINKING):
        words += _GAP + progress_words(session.progress)
    return words


def drafter_words(session: Session) -> str:
    """Who drafts right now; `parked` where plain passes are faster, `not riding` where who was asked for does not draft."""
    chosen = session.drafter.name
    if chosen == "none":
        return "drafting off"
    reply = session.current.reply if session.current else session.chat.last_reply()
    parked = reply is not None and reply.meter.parked
    if reply is not None and not drafted_in(reply, chosen):
        return chosen  # it has had no part in that reply, so it tells nothing of it
    if chosen != "auto":
        idle = parked or (reply is not None and reply.report is not None and main_drafter(reply.report) == "none")
        return f"{chosen} (not riding)" if idle else chosen
    if reply is None or not reply.meter.drafter:
        return "auto"
    return "auto: parked" if parked else f"auto: {reply.meter.drafter}"


def figures(session: Session) -> list[Chip]:
    """Tokens per pass and per second: of the last seconds while a reply streams, of the whole reply after it."""
    reply = session.current.reply if session.current else session.chat.last_reply()
    if reply is None:
        return []
    report = reply.report
    done = report is not None  # its own last line says the same
    asked = reply.settings.drafter.name if reply.settings is not None else session.drafter.name
    if done and asked != session.drafter.name:  # another drafter is chosen: these are not its figures
        return []
    if report is not None:
        per_pass, rate = mean_per_pass(report), report.tokens_per_second or None
    else:
        per_pass, rate = reply.meter.tokens_per_pass, reply.meter.tokens_per_second
    chips = []
    if per_pass:
        chips.append(Chip(f"{per_pass:.1f}/pass", 3, yields=done))
    if rate:
        chips.append(Chip(speed(rate), 4, yields=done))
    if report is not None and report.speedup is not None:
        style = "$text-success" if report.speedup.value >= 1 else "$text-warning"
        chips.append(Chip(times(report.speedup.value), 2, style, yields=True))
    return chips


def reasons(session: Session) -> list[Chip]:
    """Why the engine drafts as it does, while it answers; the model's name makes room for it."""
    if session.drafter.name == "none":
        return []
    why = session.current.reply.meter.why if session.current and session.current.reply else ""
    return [Chip(one_line(brief(why)), 0, "$text-muted", yields=True)] if why else []


def chips(session: Session) -> list[Chip]:
    """Everything the line says, from left to right."""
    state = session.state
    style = "$text-muted"
    if state in (State.STARTING, State.LOADING):
        style = "$text-warning"
    elif state in (State.DIED, State.FAILED):
        style = "bold $text-error"
    elif state in BUSY:
        style = "$text-primary"
    model = session.loaded.title or session.loaded.model if session.loaded else session.options.model.model
    model = one_line(model if len(model) <= 40 else "…" + model[-39:])
    lossy = [Chip("lossy", 8, "bold $text-warning")] if session.options.rule == "typical" else []
    waiting = [Chip(f"{len(session.queue)} waiting", 5)] if session.queue and state in BUSY else []
    why = reasons(session)
    return [
        Chip(one_line(state_words(session)), 9, style),
        *([] if why else [Chip(model, 1, "bold", yields=True, model=True)]),
        *lossy,
        Chip(one_line(drafter_words(session)), 6, yields=state not in BUSY),
        *figures(session),
        *waiting,
        *why,
    ]


def hints(keymap: Keymap, *, narrow: bool = False) -> list[tuple[str, str]]:
    """Keys for the right end, the most useful first; four where there is little room."""
    order = _FEW if narrow else ("help", "next_drafter", "drafting", "marks", "stats", "leader")
    found = {action.id: (short(action.keys[0]), action.footer) for action in keymap.actions if action.keys}
    return [found[name] for name in order if name in found]


class StatusLine(Widget):
    """Draws the chips, and a flash or the key hints in what is left."""

    def __init__(self) -> None:
        super().__init__(id="status")
        self._chips: list[Chip] = []
        self._flash = ""
        self._mode: Mode | None = None
        self.model = True
        """Whether it says which model is loaded."""
        self.keymap = build("default", {})

    def show(self, line: list[Chip]) -> None:
        """Draw these chips."""
        if line != self._chips:
            self._chips = line
            self.refresh()

    def show_mode(self, mode: Mode | None) -> None:
        """Draw what letters do instead of the chips, while something else than the prompt takes them."""
        if mode != self._mode:
            self._mode = mode
            self.refresh()

    @property
    def flashing(self) -> bool:
        """Whether a flash covers the chips."""
        return bool(self._flash)

    def flash(self, text: str) -> None:
        """Show a line over the chips until `unflash`."""
        self._flash = one_line(text)
        self.refresh()

    def unflash(self) -> None:
        """Back to the chips."""
        self._flash = ""
        self.refresh()

    def render(self) -> Content:
        """One line, as wide as there is room."""
        width = self.size.width
        if self._flash:
            return Content.styled(self._flash, "bold $text-primary").truncate(width, ellipsis=True)
        if self._mode is not None:
            return mode_line(self._mode, width)
        narrow = self.screen.size.width < _NARROW
        told = hints(self.keymap, narrow=narrow)
        asked = sum(map(_cells, told if narrow else told[-1:])) + 3  # the last one leads to all others
        left = _fitting([chip for chip in self._chips if self.model or not chip.model], width, asked)
        keys: list[str | tuple[str, str]] = []
        for key, word in _kept(told, width - left.cell_length - 3):
            keys += [(key, "bold"), (f" {word}  ", "$text-muted")]
        right = Content.assemble(*keys)
        gap = width - left.cell_length - right.cell_length
        return Content.assemble(left, " " * max(1, gap), right) if keys else left


def _cells(hint: tuple[str, str]) -> int:
    """What a key and its word take with the gap behind them."""
    return len(hint[0]) + len(hint[1]) + 3


def _kept(told: list[tuple[str, str]], room: int) -> list[tuple[str, str]]:
    """The keys that so many cells hold. The last one goes last: it leads to all that is not told."""
    kept = list(told)
    while kept and sum(map(_cells, kept)) > room:
        kept.pop(-2 if len(kept) > 1 else -1)
    return kept


def mode_line(mode: Mode, width: int) -> Content:
    """What is worked on and what letters do, in `width` cells; the way back is always there."""
    name, keys = mode
    left = len(name) + sum(len(key) + len(word) + 1 + len(_GAP) for key, word in keys)
    shown = list(keys)
    while left > width and len(shown) > 1:
        key, word = shown.pop(-2)
        left -= len(key) + len(word) + 1 + len(_GAP)
    parts: list[str | tuple[str, str]] = [(one_line(name), "bold $text-primary")]
    for key, word in shown:
        parts += [(_GAP, "$text-muted"), (key, "bold"), (f" {word}", "$text-muted")]
    return Content.assemble(*parts).truncate(width, ellipsis=True)


def _fitting(line: list[Chip], width: int, keys: int) -> Content:
    """As many chips as `width` cells hold; those that yield leave so many of them to the keys."""
    kept = list(line)

    def drop(room: int, some: Callable[[Chip], bool]) -> None:
        while sum(len(chip.text) for chip in kept) + len(_GAP) * (len(kept) - 1) > room:
            able = [chip for chip in kept if some(chip)]
            if len(kept) < 2 or not able:
                return
            kept.remove(min(able, key=lambda chip: chip.weight))

    drop(width, lambda _: True)
    if keys:
        drop(width - keys, lambda chip: chip.yields)
    parts: list[str | tuple[str, str]] = []
    for chip in kept:
        if parts:
            parts.append((_GAP, "$text-muted"))
        parts.append((chip.text, chip.style))
    return Content.assemble(*parts)
