"""Thinking blocks: how a model sets its thoughts apart, and an answer split into thought and answer while it streams.

A marker is what stands between the two: `<think>`, `[/THINK]`, `<|channel>thought`, or a header such as
`<|channel|>analysis<|message|>`. Where a part of a marker is a token of its own, only that token counts, not the same
letters written out; inside the splitter each such token is one sign that no text holds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Place = Literal["answer", "thinking", "header"]
_SIGNS = 0xFDD0  # first of 32 code points that are no characters and never will be
_PARTS = re.compile(r"<[^<>]+>|\[[^\[\]]+\]|[^<\[]+|.", re.DOTALL)
_TAG = re.compile(r"</((?:\w+:)?think(?:ing)?)>")


class Encoder(Protocol):
    """What of a tokenizer is asked."""

    @property
    def special(self) -> Collection[int]:
        """Ids of control tokens."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, special tokens recognised."""
        ...


@dataclass(frozen=True, slots=True)
class Marker:
    """A text that is shown nowhere, and what begins after it; `body`: what the header says.

    One that is not `sure` could be ordinary text: it counts before any text of a block, and as the end of a thought. With
    `after` it also counts in an answer that the marker of that text began.
    """

    text: str
    to: Place | Literal["body"]
    after: str = ""
    signed: str = ""  # as the splitter sees it
    sure: bool = False


@dataclass(frozen=True, slots=True)
class Format:
    """The markers of one model. `private`: words in a header that make its body a thought."""

    markers: tuple[Marker, ...]
    private: tuple[str, ...] = ()
    signs: Mapping[int, str] = field(default_factory=dict)  # token id -> its sign
    written: Mapping[int, str] = field(default_factory=dict)  # token id -> its text
    stand_ins: Mapping[int, str] = field(default_factory=dict)  # sign -> what is shown for it where it marks nothing

    def begins(self, prompt: str) -> tuple[Place, str] | None:
        """Where the answer to a rendered prompt begins, and the header so far; None if the prompt ends with no marker."""
        last = max(self.markers, key=lambda marker: prompt.rfind(marker.text))
        at = prompt.rfind(last.text)
        rest = prompt[at + len(last.text) :]
        if at < 0 or last.to == "body" or (rest.strip() and last.to != "header"):
            return None
        return last.to, rest


@dataclass(frozen=True, slots=True)
class _Known:
    """A format as it is written down: the words in a template that tell of it, and its markers."""

    tells: tuple[str, ...]
    markers: tuple[Marker, ...]
    private: tuple[str, ...] = ()


def _tags(opening: str, closing: str) -> tuple[Marker, ...]:
    return Marker(opening, "thinking"), Marker(closing, "answer")


_KNOWN = (
    _Known(
        ("<|start|>", "<|channel|>", "<|message|>"),
        (
            Marker("<|start|>", "header"),
            Marker("<|channel|>", "header"),
            Marker("<|constrain|>", "header"),
            Marker("<|message|>", "body"),
            Marker("<|end|>", "header"),
        ),
        private=("analysis", "commentary"),
    ),
    _Known(
        ("<|start|>", "to=self<|message|>"),
        (Marker("<|start|>", "header"), Marker("<|message|>", "body"), Marker("<|eom|>", "header")),
        private=("to=self",),
    ),
    _Known(
        ("<|begin|>", "<|think|>", "<|content|>"),
        (
            Marker("<|begin|>", "header"),
            Marker("<|think|>", "thinking"),
            Marker("<|content|>", "answer"),
            Marker("<|end|>", "header"),
        ),
    ),
    _Known(
        ("<|open|>", "<|sep|>", "think"),
        (
            *_tags("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
            Marker("<|open|>response<|sep|>", "answer"),
            Marker("<|close|>response<|sep|>", "answer"),
            Marker("<|close|>message<|sep|>", "answer"),
        ),
    ),
    _Known(("<|channel>thought", "<channel|>"), _tags("<|channel>thought", "<channel|>")),
    _Known(
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        (
            *_tags("<|START_THINKING|>", "<|END_THINKING|>"),
            *(Marker(f"<|{edge}_{part}|>", "answer") for edge in ("START", "END") for part in ("RESPONSE", "TEXT")),
        ),
    ),
    _Known(("[THINK]", "[/THINK]"), _tags("[THINK]", "[/THINK]")),
    _Known(("<|inner_prefix|>", "<|inner_suffix|>"), _tags("<|inner_prefix|>", "<|inner_suffix|>")),
    _Known(
        ("[BEGIN FINAL RESPONSE]",),
        (
            *_tags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
            Marker("[END FINAL RESPONSE]", "answer", after="[BEGIN FINAL RESPONSE]"),
        ),
    ),
    _Known(("'<think{}>'", "':opensource'"), _tags("<think:opensource>", "</think:opensource>")),
    _Known(
        ("between <think></think>", "between <response></response>"),
        (
            *_tags("<think>", "</think>"),
            Marker("<response>", "answer"),
            Marker("</response>", "answer", after="<response>"),
        ),
    ),
)


def find(source: str, vocabulary: Encoder) -> Format | None:
    """The thinking format of the model with this chat template and vocabulary, None if it has none."""
    for known in _KNOWN:
        if all(word in source for word in known.tells):
            return _signed(known.markers, known.private, vocabulary)
    tag = _TAG.search(source)
    name = tag[1] if tag else "think"
    opening, closing = f"<{name}>", f"</{name}>"
    if tag is None and not all(len(vocabulary.encode(text)) == 1 for text in (opening, closing)):
        return None
    return _signed(_tags(opening, closing), (), vocabulary)


def _signed(markers: Sequence[Marker], private: tuple[str, ...], vocabulary: Encoder) -> Format:
    """Give each token that is a part of a marker its sign."""
    signs: dict[int, str] = {}
    written: dict[int, str] = {}
    made = []
    for marker in markers:
        signed, sure = "", "|" in marker.text
        for part in _PARTS.findall(marker.text):
            ids = vocabulary.encode(part)
            if len(ids) == 1 and len(part) > 1 and part[0] in "<[":
                signed += signs.setdefault(ids[0], chr(_SIGNS + len(signs)))
                written[ids[0]] = part
                sure = sure or ids[0] in vocabulary.special
            else:
                signed += part
        made.append(Marker(marker.text, marker.to, marker.after, signed, sure))
    stand_ins = {ord(sign): "" if token in vocabulary.special else written[token] for token, sign in signs.items()}
    return Format(tuple(made), private, signs, written, stand_ins)


def switches(source: str, think: bool) -> dict[str, Any]:
    """The variables by which a template is asked to think or not to; those that it does not know do nothing."""
    found: dict[str, Any] = {"enable_thinking": think, "thinking": think}
    if "reasoning_effort" in source and "enable_thinking" not in source:
        quiet = [word for word in ("no_think", "none") if f"'{word}'" in source or f'"{word}"' in source]
        found["reasoning_effort"] = "high" if think else (*quiet, "low")[0]
    return found


class Splitter:
    """Follows one answer from the end of its prompt. All pieces of a side, joined, are that side's text.

    White space behind a marker and at the end of a thought belongs to the markers; parts of a side are set apart by an empty
    line.
    """

    def __init__(self, format: Format, prompt: str) -> None:
        self._format = format
        begins = format.begins(prompt)
        self._place: Place = begins[0] if begins else "answer"
        self._header = begins[1] if begins else ""
        self._fresh = begins is not None  # nothing but a marker came before: white space is the marker's
        self._begun = False  # the block at hand has shown text
        self._closing = False  # the answer is next, but has not begun
        self._held = ""  # may become a marker
        self._passed: set[str] = set()  # texts of the markers met so far
        self._any = {"answer": False, "thinking": False}  # which sides have text
        self.inside = self._place != "answer"
        """Whether the newest token belongs to a thought, its markers included."""

    def push(self, token: int, text: str) -> tuple[str, str]:
        """Take one token and the text that it completes; returns what of thought and answer may be shown now."""
        sign = self._format.signs.get(token)
        if sign is not None:
            text = text.removesuffix(self._format.written[token]) + sign
        self._held += text
        shown = {"thinking": "", "answer": ""}
        while (found := self._next()) is not None:
            marker, at = found
            self._show(self._held[:at], shown, ends=True)
            self._held = self._held[at + len(marker.signed) :]
            self._enter(marker)
        sure = len(self._held) - self._undecided()
        self._show(self._held[:sure], shown)
        self._held = self._held[sure:]
        self._closing = self._closing and not shown["answer"]
        self.inside = not shown["answer"] and (bool(shown["thinking"]) or self._place != "answer" or self._closing)
        return shown["thinking"], shown["answer"]

    def end(self, text: str = "") -> tuple[str, str]:
        """What is left of both sides: no token will come any more."""
        shown = {"thinking": "", "answer": ""}
        self._show(self._held + text, shown, ends=True)
        self._held = ""
        return shown["thinking"], shown["answer"]

    def _show(self, text: str, shown: dict[str, str], *, ends: bool = False) -> None:
        if self._place == "header":
            self._header += text
            return
        text = text.translate(self._format.stand_ins)
        if self._fresh:
            text = text.lstrip()
        if ends and self._place == "thinking":
            text = text.rstrip()
        if not text:
            return
        if self._any[self._place] and not self._begun:
            text = "\n\n" + text
        self._fresh, self._begun, self._any[self._place] = False, True, True
        shown[self._place] += text

    def _enter(self, marker: Marker) -> None:
        if marker.to == "header":
            if self._place != "header":
                self._header = ""
            place: Place = "header"
        elif marker.to == "body":
            place = "thinking" if any(word in self._header for word in self._format.private) else "answer"
        else:
            place = marker.to
        self._closing = place == "answer" and (self._closing or self._place != "answer")
        self._place, self._fresh, self._begun = place, True, False
        self._passed.add(marker.text)

    # ------------------------------------------------------------------ matching

    def _next(self) -> tuple[Marker, int] | None:
        """The first marker in what is held, and where it stands."""
        found = [(marker, at) for marker in self._format.markers if (at := self._find(marker)) >= 0]
        return min(found, key=lambda one: one[1], default=None)

    def _find(self, marker: Marker) -> int:
        if self._free(marker):
            return self._held.find(marker.signed)
        if self._begun:
            return -1
        lead = len(self._held) - len(self._held.lstrip())
        return lead if self._held.startswith(marker.signed, lead) else -1

    def _free(self, marker: Marker) -> bool:
        """Whether it counts wherever it stands."""
        if marker.sure or self._place == "header":
            return True
        if marker.after:
            return self._place == "answer" and marker.after in self._passed
        return self._place == "thinking" and marker.to == "answer"

    def _undecided(self) -> int:
        """Characters at the end of what is held that may become a marker, or are white space before the end of a thought."""
        held = self._held
        if not held:
            return 0
        if not self._begun:
            bare = held.lstrip()
            if any(m.signed.startswith(bare) for m in self._format.markers if not self._free(m)):
                return len(held)
        free = [m.signed for m in self._format.markers if self._free(m)]
        most = min(len(held), max(map(len, free), default=1) - 1)
        size = next((n for n in range(most, 0, -1) if any(signed.startswith(held[-n:]) for signed in free)), 0)
        if self._place == "thinking":
            size = len(held) - len(held[: len(held) - size].rstrip())
        return size
