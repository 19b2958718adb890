"""Text as it is spoken: whole sentences out of what comes in pieces, and figures in words."""

from __future__ import annotations

import re

from outrider.app.chat import talk
from outrider.app.chat.meter import main_drafter, mean_per_pass, times
from outrider.app.chat.talk import Thought
from outrider.app.render import duration
from outrider.core.base.protocol import Progress, Report

_END = re.compile(r"""\n|(?:[.!?…]["')\]*_]*(?=\s)|[。！？])[^\S\n]*\n*""")
_NUMBER = re.compile(r"^\s*\d+$")  # `3.` at the start of a line is no sentence
_LONG = 400  # characters after which what has no end is said up to a blank


class Sentences:
    """Takes a text in pieces and gives it out in sentences, nothing of it lost or changed."""

    def __init__(self) -> None:
        self._rest = ""

    def add(self, text: str) -> str:
        """The sentences that are whole now."""
        self._rest += text
        end = 0
        for match in _END.finditer(self._rest):
            line = self._rest[self._rest.rfind("\n", 0, match.start()) + 1 : match.start()]
            if match[0].startswith("\n") or not _NUMBER.match(line):
                end = match.end()
        if end == len(self._rest) and not self._rest.endswith("\n"):
            end = end if self._rest[-1:].isspace() or self._rest[-1:] in "。！？" else 0
        if not end and len(self._rest) > _LONG:
            end = self._rest.rfind(" ") + 1
        said, self._rest = self._rest[:end], self._rest[end:]
        return said

    def rest(self) -> str:
        """What is left at the end."""
        said, self._rest = self._rest, ""
        return said


def figures(report: Report) -> str:
    """The figures of a reply as one sentence."""
    seconds = report.timing.first_token_s + report.timing.decode_s
    count = len(report.token_ids)
    time = duration(seconds).replace(" s", " seconds") if seconds >= 9.95 else f"{seconds:.1f} seconds"
    parts = [f"{count} token{'s' if count != 1 else ''} in {time}"]
    if report.tokens_per_second > 0:
        parts.append(f"{report.tokens_per_second:.0f} tokens per second")
    if per_pass := mean_per_pass(report):
        parts.append(f"{per_pass:.1f} tokens per pass")
    if report.proposed:
        parts.append(f"{100 * report.accepted / report.proposed:.0f} percent of the guesses accepted")
    if report.speedup is not None:
        parts.append(f"{times(report.speedup.value).removesuffix('×')} times as fast as plain")
    drafter = main_drafter(report)
    parts.append("no drafting" if drafter == "none" else f"drafter {drafter}")
    lossy = "Lossy: typical acceptance. " if report.rule == "typical" else ""
    return f"{lossy}{', '.join(parts)}."


def thought_words(thought: Thought) -> str:
    """How long the model thought, as one sentence."""
    return f"It thought for {talk.figures(thought).replace(' s,', ' seconds,').replace('%', ' percent')}."


def progress_words(progress: Progress) -> str:
    """How far something is, in words."""
    if progress.total > 0:
        return f"{progress.phase}: {min(100.0, 100 * progress.done / progress.total):.0f} percent."
    return f"{progress.phase}."
