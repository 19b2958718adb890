"""All messages of a chat as a tree: each stands under one other, and those under the same one are branches."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.app.store.records import Attachment

if TYPE_CHECKING:
    from outrider.app.chat.talk import Reply


@dataclass(eq=False, slots=True)
class Knot:
    """One message. `above` is the name of the one that it stands under, empty for the first; `made` a reply, or what makes it."""

    node: str
    above: str = ""
    text: str = ""
    attachments: tuple[Attachment, ...] = ()
    made: Reply | Callable[[], Reply] | None = None

    @property
    def of_model(self) -> bool:
        """Whether the model wrote it."""
        return self.made is not None

    @property
    def reply(self) -> Reply | None:
        """What the model wrote, None for a message of the user."""
        if callable(self.made):
            self.made = self.made()
            self.made.node = self.node
        return self.made


class Tree:
    """The messages by name. One that was taken out and is put back stands where it stood."""

    def __init__(self) -> None:
        self._knots: dict[str, Knot] = {}
        self._under: dict[str, list[str]] = {}
        self._numbers: dict[str, int] = {}  # in the order in which they came, also of those taken out

    def __len__(self) -> int:
        return len(self._knots)

    def __contains__(self, node: object) -> bool:
        return node in self._knots

    def __getitem__(self, node: str) -> Knot:
        return self._knots[node]

    def add(self, knot: Knot) -> None:
        """Put a message into the tree, or in the place of the one of that name."""
        self._numbers.setdefault(knot.node, len(self._numbers))
        if knot.node not in self._knots:
            insort(self._under.setdefault(knot.above, []), knot.node, key=self._numbers.__getitem__)
        self._knots[knot.node] = knot

    def under(self, node: str) -> list[str]:
        """What stands right under a message, oldest first; under "" the beginnings."""
        return list(self._under.get(node, ()))

    def siblings(self, node: str) -> list[str]:
        """The messages at the place of this one, itself included, oldest first."""
        one = self._knots.get(node)
        if one is None:
            return []
        return [name for name in self.under(one.above) if self._knots[name].of_model == one.of_model]

    def place(self, node: str) -> tuple[int, int]:
        """Which of how many siblings it is, from 1."""
        siblings = self.siblings(node)
        return (siblings.index(node) + 1 if siblings else 1), max(1, len(siblings))

    def leaf(self, node: str) -> str:
        """The newest message below one, by the newest at every fork."""
        while below := self._under.get(node):
            node = below[-1]
        return node

    def path(self, node: str) -> list[Knot]:
        """The messages from the first one down to this one."""
        found: list[Knot] = []
        place = self._knots.get(node)
        while place is not None and len(found) < len(self._knots):  # a damaged store may go in circles
            found.append(place)
            place = self._knots.get(place.above)
        return found[::-1]

    def below(self, node: str) -> list[Knot]:
        """A message and all that follow from it, each before those under it."""
        found, waiting = [], [node] if node in self._knots else []
        while waiting:
            name = waiting.pop()
            found.append(self._knots[name])
            waiting += reversed(self.under(name))
        return found

    def cut(self, node: str) -> list[Knot]:
        """Take a message out with all that follow from it; returns them, to be added again if need be."""
        gone = self.below(node)
        for knot in gone:
            del self._knots[knot.node]
            self._under[knot.above].remove(knot.node)
        return gone
