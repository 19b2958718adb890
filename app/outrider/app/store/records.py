"""Chats and messages as they are kept, and as the JSON export writes them. Keys are only ever added."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from outrider.core.base.protocol import DrafterChoice, ModelChoice, Report, Sampling

State = Literal["waiting", "partial", "complete", "length", "stopped", "interrupted", "failed"]
_TITLE = 60  # characters
_SHORT = 8  # letters of an id that people are shown; its end, as all of one day begin alike
OPEN = ("waiting", "partial")  # states of what a running Outrider still works on


class Settings(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What a chat was held with."""

    model: ModelChoice = msgspec.field(default_factory=ModelChoice)
    drafter: DrafterChoice = msgspec.field(default_factory=DrafterChoice)
    sampling: Sampling = msgspec.field(default_factory=Sampling)
    rule: str = "match"
    think: bool | None = None
    outrider: str = ""  # the version that made a reply


class Pass(msgspec.Struct, array_like=True):
    """One pass of the target. Times in seconds and milliseconds; characters of thought and answer that it brought."""

    t: float
    drafter: str
    proposed: int
    accepted: int
    tokens: int
    thought: int
    answer: int
    draft_ms: float
    verify_ms: float
    host_ms: float


class Figures(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What a report does not tell of a reply: figures of its thought, drafters in order of appearance, at which passes the later
    parts of one that was gone on with begin, and how many of its characters the user wrote."""

    tokens: int = 0
    seconds: float = 0.0
    proposed: int = 0
    accepted: int = 0
    drafters: list[str] = []
    parts: list[int] = []
    lead: int = 0


class Answer(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What is kept of a reply beside its text. `marks` and `thought_marks` are run lengths over the characters, `kinds` over
    the tokens, `chances` tells the passes and chances of the characters (see chances.py). The report leaves out what stands
    elsewhere: texts, token ids and kinds."""

    marks: str = ""
    thought_marks: str = ""
    ids: list[int] = []
    kinds: str = ""
    passes: list[Pass] = []
    figures: Figures = msgspec.field(default_factory=Figures)
    settings: Settings | None = None
    report: Report | None = None
    chances: str = ""


class Kept(NamedTuple):
    """A finished reply for the history of drafters: when, by which Outrider if that is known, tokens, and its report without
    its texts."""

    created: float
    outrider: str
    tokens: int
    report: Report


class Attachment(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A text that goes to the model with a message and is shown only by name. `path`: where it came from, empty if pasted."""

    name: str
    text: str
    path: str = ""


class Node(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One message of a chat; those with the same parent are branches."""

    id: str
    role: Literal["user", "assistant"]
    text: str
    parent: str | None = None
    thinking: str = ""
    state: State = "complete"
    created: float = 0.0  # seconds since 1970
    model: str = ""
    attachments: list[Attachment] = []
    answer: Answer | None = None


class Chat(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A chat without its messages. `head`: the last message of the branch that is shown."""

    id: str
    title: str
    created: float
    updated: float
    head: str | None = None
    system: str | None = None
    settings: Settings = msgspec.field(default_factory=Settings)


class Whole(msgspec.Struct, kw_only=True):
    """A chat with all of its messages, in the order in which they came."""

    chat: Chat
    nodes: list[Node]

    def path(self) -> list[Node]:
        """The branch that is shown, oldest first."""
        known = {node.id: node for node in self.nodes}
        found: list[Node] = []
        place = known.pop(self.chat.head or "", None)
        while place is not None:
            found.append(place)
            place = known.pop(place.parent or "", None)
        return found[::-1]


class Row(msgspec.Struct, kw_only=True):
    """One line of `chats list`. `messages`: of the user, on the branch that is shown. `in_use`: another window has it open."""

    id: str
    title: str
    created: float
    updated: float
    messages: int
    model: str
    in_use: bool = False


class Hit(msgspec.Struct, kw_only=True):
    """One message that a search found; `marked` are the places of its words in `snippet`."""

    chat: str
    title: str
    node: str
    role: str
    created: float
    snippet: str
    marked: list[tuple[int, int]] = []


class Deleted(msgspec.Struct, kw_only=True):
    """What was deleted or brought back."""

    chat: str
    title: str
    node: str = ""


def title_of(text: str) -> str:
    """The first words of a message."""
    words = " ".join(text[: 8 * _TITLE].split())
    if len(words) <= _TITLE:
        return words or "Empty message"
    cut = words[:_TITLE].rsplit(" ", 1)[0] if " " in words[_TITLE // 2 : _TITLE] else words[:_TITLE]
    return f"{cut.rstrip(' ,;:.')}…"


def short(chat: str) -> str:
    """An id as people are shown it."""
    return chat[-_SHORT:].lower()


def copied(title: str) -> str:
    """What is said of a copy of a chat that is open elsewhere."""
    return (
        f"“{title}” is open in another window and goes on there. This is a copy of it, down to its last finished reply: "
        "what is said here is not said there."
    )


def not_copied(title: str) -> str:
    """What is said where there is nothing to copy."""
    return f"“{title}” is open in another window, and nothing in it is finished yet: this is a new chat."
