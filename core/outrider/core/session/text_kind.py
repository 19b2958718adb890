"""What kind of text an answer is in: prose, code, thinking or JSON. Acceptance differs most by this.

Code is what stands between fences of Markdown. JSON is a fence that says so, or an answer that begins with it. All of it is
told from the text alone, piece by piece as it is written, in microseconds.
"""

from __future__ import annotations

import re

from outrider.core.base.protocol import Phase as Phase

_FENCE = re.compile(r"[ \t>]*(?:(?:[-*+]|\d{1,3}[.)])[ \t]+)?(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*")
_LINE = 80  # characters of a line that are looked at
_JSON = ("json", "jsonc", "json5", "jsonl", "ndjson")  # what a fence of JSON says
_AFTER = {"{": '"}', "[": '{["]-0123456789tfn'}  # what may come next in JSON behind its first bracket


class TextKind:
    """Follows one answer. `prompt_tail`: the end of the prompt that a raw completion goes on from; "" for a chat."""

    def __init__(self, prompt_tail: str = "") -> None:
        self._line = ""  # the line at hand, as far as it is looked at
        self._fence = ""  # the marks of the open fence
        self._named = ""  # what that fence says it holds
        self._bare = _Bare()
        self._thinking = False
        if prompt_tail:
            self._scan(prompt_tail)

    @property
    def now(self) -> Phase:
        """The phase of what comes next."""
        if self._thinking:
            return "thinking"
        if self._fence:
            return "json" if self._named in _JSON else "code"
        return "json" if self._bare.depth else "prose"

    def feed(self, text: str, thinking: bool) -> None:
        """Take an emitted piece of text; `thinking`: it belongs to a thought, which says nothing of the answer."""
        self._thinking = thinking
        if thinking or not text:
            return
        if not self._bare.over and not self._fence:
            text = self._bare.take(text)
        if "\n" in text:
            self._scan(text)
        elif len(self._line) < _LINE:
            self._line += text

    def _scan(self, text: str) -> None:
        """A fence counts once its line is whole."""
        *whole, rest = text.split("\n")
        for part in whole:
            self._end_line(self._line + part if len(self._line) < _LINE else self._line)
            self._line = ""
        if len(self._line) < _LINE:
            self._line += rest

    def _end_line(self, line: str) -> None:
        if self._fence:
            bare = line.strip(" \t>\r")
            if len(bare) >= len(self._fence) and bare == self._fence[0] * len(bare):
                self._fence = ""
        elif fence := _FENCE.fullmatch(line):
            self._fence, self._named = fence[1], fence[2].lower()


class _Bare:
    """JSON without a fence, from the first sign of an answer on; another one may follow it."""

    def __init__(self) -> None:
        self.over = False  # something came that is none
        self.depth = 0  # open brackets
        self._first = ""  # the outermost one, until something stands after it
        self._quoted = self._escaped = False

    def take(self, text: str) -> str:
        """What of `text` is no JSON any more; "" while all is."""
        for at, sign in enumerate(text):
            if not self._follows(sign):
                self.over, self.depth = True, 0
                return text[at:]
        return ""

    def _follows(self, sign: str) -> bool:
        if self._quoted:
            self._quoted = self._escaped or sign != '"'
            self._escaped = sign == "\\" and not self._escaped
            return True
        if sign.isspace():
            return True
        if not self.depth:
            self._first = sign
            self.depth = 1
            return sign in _AFTER
        fits = not self._first or sign in _AFTER[self._first]
        self._first = ""
        self._quoted = sign == '"'
        self.depth += (sign in "{[") - (sign in "}]")
        return fits
