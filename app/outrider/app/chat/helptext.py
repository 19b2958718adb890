"""What the help says: the place one is at first, then every action, what the marks mean and what the figures are."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.app.chat.actions import ACTIONS, PROMPT_KEYS, Action
from outrider.app.chat.keymap import shown
from outrider.app.chat.terms import TERMS
from outrider.app.config import FIELDS

_KEYS, _COMMAND = 24, 22  # cells of the first two columns
_NARROW = 84  # cells; below them a line has its words under it
_MODES = {
    "accepted": "tints what a drafter guessed and the model agreed with",
    "passes": "tints every other pass of the model: as long as one tint goes on, it all came at once",
    "corrections": "makes bold where the model overruled a drafter: what the drafter did not know",
    "confidence": "underlines where the model itself gave the token less than one half",
    "off": "marks nothing",
}
_SIGNS = "Where colours are few, or NO_COLOR is set, an underline stands for a tint and bold for another colour."

Part = tuple[str, str]
"""A piece of a line and its style."""


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that is told. `reason`: why it can do nothing now."""

    keys: str
    command: str
    words: str
    reason: str = ""

    @property
    def text(self) -> str:
        """All of it, to be looked through."""
        return f"{self.keys} {self.command} {self.words} {self.reason}".lower()


@dataclass(frozen=True, slots=True)
class Section:
    """What belongs together."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """What has the focus: `prompt`, `message` or the name of something else, and the keys that it brings itself."""

    name: str = "prompt"
    keys: Sequence[tuple[str, str]] = ()


def _of_action(action: Action, leader: str, reasons: Mapping[str, str]) -> Line:
    names = [shown(name) for name in action.keys]
    names += [f"{shown(name)} if empty" for name in action.empty_prompt]
    if action.leader and leader:
        names.append(f"{leader} {action.leader}")
    command = f"/{action.slash} {action.argument}".rstrip() if action.slash else ""
    return Line(", ".join(names), command, action.help, reasons.get(action.id, ""))


def _here(place: Place, actions: Sequence[Action], reasons: Mapping[str, str]) -> Section:
    """What works where the focus is."""
    if place.name == "prompt":
        return Section("In the prompt, where you are", tuple(Line(keys, "", words) for keys, words in PROMPT_KEYS))
    if place.name == "message":
        lines = [
            Line(", ".join(one.letters), "", one.help, reasons.get(one.id, "")) for one in actions if one.on_message
        ]
        others = Line("anything else", "", "Goes to the prompt, and so do letters that follow each other quickly")
        return Section("On this message, where you are", (*lines, others))
    return Section(f"On the {place.name}, where you are", tuple(Line(keys, "", words) for keys, words in place.keys))


def sections(
    actions: Sequence[Action] = ACTIONS,
    place: Place = Place(),
    reasons: Mapping[str, str] | None = None,
) -> list[Section]:
    """All of the help. `reasons`: by action, why it can do nothing now."""
    reasons = reasons or {}
    leader = next((shown(one.keys[0]) for one in actions if one.id == "leader" and one.keys), "")
    found = [_here(place, actions, reasons)]
    if place.name != "prompt":
        found.append(Section("In the prompt", tuple(Line(keys, "", words) for keys, words in PROMPT_KEYS)))
    for group in dict.fromkeys(action.group for action in actions):
        lines = (_of_action(one, leader, reasons) for one in actions if one.group == group)
        found.append(Section(group, tuple(lines)))
    if place.name != "message":
        letters = (Line(", ".join(one.letters), "", one.help) for one in actions if one.on_message)
        found.append(Section("Letters on a message that has the focus", tuple(letters)))
    modes = [Line(mode, f"/marks {mode}", _MODES.get(mode, "")) for mode in FIELDS["look.marks"].choices]
    kinds = [Line(TERMS[name].label, "", TERMS[name].definition) for name in TERMS if name.startswith("kind_")]
    found.append(Section("Marks", (*modes, *kinds, Line("", "", _SIGNS))))
    figures = (Line(term.label, "", term.definition) for name, term in TERMS.items() if not name.startswith("kind_"))
    found.append(Section("Figures", tuple(figures)))
    return found


def having(told: Sequence[Section], words: str) -> list[Section]:
    """Only the lines that have all of the words, or stand under a title that has them."""
    wanted = words.lower().split()
    found = []
    for section in told:
        title = section.title.lower()
        lines = tuple(line for line in section.lines if all(word in line.text or word in title for word in wanted))
        if lines:
            found.append(Section(section.title, lines))
    return found


def laid_out(told: Sequence[Section], width: int) -> list[Part]:
    """The text for so many cells, in pieces with their styles."""
    parts: list[Part] = []
    for section in told:
        parts.append((("\n\n" if parts else "") + section.title, "bold"))
        for line in section.lines:
            parts.append(("\n", ""))
            parts += _wide(line, width) if width >= _NARROW else _narrow(line, width)
    return parts


def _said(line: Line) -> str:
    return f"{line.words} · not now: {line.reason}" if line.reason else line.words


def _styles(line: Line) -> tuple[str, str, str]:
    return ("$text-muted", "$text-muted", "$text-muted") if line.reason else ("$text-primary", "$text-success", "")


def _wide(line: Line, width: int) -> list[Part]:
    key, command, words = _styles(line)
    before = _KEYS + _COMMAND
    rows = textwrap.wrap(_said(line), max(20, width - before)) or [""]
    head = [(f"{line.keys:<{_KEYS - 1}} ", key), (f"{line.command:<{_COMMAND - 1}} ", command)]
    over = sum(len(text) for text, _ in head) > before  # what does not fit takes a line of its own
    first = [("\n" + " " * before, "")] if over else []
    return [*head, *first, (("\n" + " " * before).join(rows), words)]


def _narrow(line: Line, width: int) -> list[Part]:
    key, command, words = _styles(line)
    head = [(text, style) for text, style in ((line.keys, key), (line.command, command)) if text]
    if len(head) == 2:
        head.insert(1, ("  ", ""))
    rows = textwrap.wrap(_said(line), max(10, width - 2)) or [""]
    return [*head, ("\n  " if head else "  ", ""), ("\n  ".join(rows), words)]
