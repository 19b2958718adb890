"""Where in a reply one looks: at a token of a pass."""

from __future__ import annotations

from outrider.app.chat.inspect.trail import Passage, Seen


class Cursor:
    """Walks the tokens of some passes. While it follows, it is at the newest token."""

    def __init__(self, passages: list[Passage]) -> None:
        self.passages = passages
        self.follows = True
        self.place = self.index = 0
        self.end()

    def grow(self, passages: list[Passage]) -> None:
        """More came."""
        self.passages = passages
        self.place = min(self.place, max(0, len(passages) - 1))
        if self.follows:
            self.end()

    @property
    def passage(self) -> Passage | None:
        """The pass at hand."""
        return self.passages[self.place] if self.passages else None

    @property
    def token(self) -> Seen | None:
        """The token at hand; None of a pass that brought none."""
        tokens = self.passage.tokens if self.passage else []
        return tokens[self.index] if self.index < len(tokens) else None

    def end(self) -> None:
        """To the newest token."""
        self.follows = True
        brought = [place for place, passage in enumerate(self.passages) if passage.tokens]
        self.place = brought[-1] if brought else max(0, len(self.passages) - 1)
        self.index = max(0, self._size(self.place) - 1)

    def start(self) -> None:
        """To the first one."""
        self.follows, self.place, self.index = False, 0, 0

    def step(self, by: int) -> None:
        """One token on, or back; it stays at the ends."""
        self.follows = False
        place, index = self.place, self.index + by
        while not 0 <= index < self._size(place):
            place += 1 if by > 0 else -1
            if not 0 <= place < len(self.passages):
                return
            index = 0 if by > 0 else self._size(place) - 1
        self.place, self.index = place, index

    def jump(self, by: int) -> None:
        """So many passes on, or back, to the first token there."""
        self.follows = False
        self.place = min(max(0, self.place + by), max(0, len(self.passages) - 1))
        self.index = 0

    def _size(self, place: int) -> int:
        return len(self.passages[place].tokens) if 0 <= place < len(self.passages) else 0

    def around(self, before: int, after: int) -> tuple[str, str, str]:
        """Text before the token, the token, and text behind it: at most so many characters."""
        token = self.token
        if self.passage is None or token is None:
            return "", "", ""
        tokens = self.passage.tokens
        left, right = "".join(one.text for one in tokens[: self.index]), ""
        place = self.place
        while len(left) < before and place > 0:
            place -= 1
            left = self.passages[place].text + left
        right = "".join(one.text for one in tokens[self.index + 1 :])
        place = self.place + 1
        while len(right) < after and place < len(self.passages):
            right += self.passages[place].text
            place += 1
        return left[-before:] if before else "", token.text, right[:after]
