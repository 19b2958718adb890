"""Emission: EOS, stop strings and limits inside a block, and that no text is shown which is cut later."""

from __future__ import annotations

from outrider.core.base.protocol import Token
from outrider.core.session.emit import Emitter
from outrider.core.text.thinking import Splitter, find


class Words:
    """Detokeniser of a table; a token may complete what an earlier one began."""

    def __init__(self, table: dict[int, str], tail: str = "") -> None:
        self.table, self.tail = table, tail

    def push(self, token: int) -> str:
        return self.table[token]

    def flush(self) -> str:
        tail, self.tail = self.tail, ""
        return tail


TABLE = {1: "one ", 2: "two ", 3: "st", 4: "op", 5: "", 6: "stop and more", 7: "s"}


def feed(emitter: Emitter, *ids: int) -> list[str]:
    return [token.text for i in ids if (token := emitter.push(i, "A")) is not None]


def test_eos_ends_and_is_not_emitted() -> None:
    emitter = Emitter(Words(TABLE), eos={0})
    assert feed(emitter, 1, 2, 0, 1) == ["one ", "two "]
    assert (emitter.ids, emitter.finish, emitter.text) == ([1, 2], "stop", "one two ")


def test_a_stop_string_over_two_tokens_cuts_both() -> None:
    emitter = Emitter(Words(TABLE), eos={0}, stop=["stop"])
    assert "".join(feed(emitter, 1, 3, 4, 2)) == "one "
    assert (emitter.ids, emitter.finish, "".join(emitter.kinds)) == ([1], "stop", "A")


def test_a_token_partly_cut_stays() -> None:
    emitter = Emitter(Words({1: "go st", 2: "op"}), eos=(), stop=["stop"])
    assert feed(emitter, 1, 2) == ["go "]
    assert (emitter.ids, emitter.text) == ([1], "go ")


def test_held_text_comes_out_when_it_was_no_stop() -> None:
    emitter = Emitter(Words(TABLE), eos={0}, stop=["stop"])
    assert feed(emitter, 3, 1, 7, 2) == ["", "stone ", "", "stwo ".replace("st", "st", 1)]
    assert emitter.text == "stone stwo "


def test_held_text_comes_out_at_the_end() -> None:
    emitter = Emitter(Words(TABLE, tail="\ufffd"), eos={0}, stop=["stop"])
    feed(emitter, 1, 3)
    assert emitter.text == "one "
    assert emitter.close("cancelled") == "st\ufffd"
    assert (emitter.text, emitter.finish) == ("one st\ufffd", "cancelled")
    assert emitter.close("length") == ""


def test_the_earliest_stop_wins() -> None:
    emitter = Emitter(Words(TABLE), eos=(), stop=["more", "and"])
    feed(emitter, 1, 6)
    assert emitter.text == "one stop "
    assert emitter.ids == [1, 6]


def test_the_limit_counts_emitted_tokens() -> None:
    emitter = Emitter(Words(TABLE), eos={0}, limit=3)
    assert feed(emitter, 1, 5, 2, 1) == ["one ", "", "two "]
    assert (emitter.finish, emitter.ids) == ("length", [1, 5, 2])
    assert emitter.left(100) == 0


def test_a_stop_at_the_limit_is_a_stop() -> None:
    emitter = Emitter(Words(TABLE), eos=(), stop=["stop"], limit=3)
    feed(emitter, 1, 3, 4)
    assert (emitter.finish, emitter.text) == ("stop", "one ")


def test_pieces_always_make_the_text() -> None:
    for ids in ([3, 3, 4, 1], [7, 3, 7, 3, 1], [3, 7, 4, 6], [1, 2, 1]):
        emitter = Emitter(Words(TABLE), eos=(), stop=["stop", "sts"])
        shown = "".join(feed(emitter, *ids)) + emitter.close("length")
        assert shown == emitter.text
        assert not any(stop in emitter.text for stop in ("stop", "sts"))


class Bytes:
    """A vocabulary without markers of its own."""

    special: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


THOUGHTFUL = {
    1: "Hm",
    2: " stop",
    3: ".\n</think>",
    4: "\n\n",
    5: "Hello",
    6: " sto",
    7: "p now",
    8: "!\n</think> Yes",
    9: " ",
}


def thoughtful(prompt: str = "<think>\n", tail: str = "", **more) -> Emitter:
    """An emitter of a model that thinks in tags."""
    form = find("</think>", Bytes())
    assert form is not None
    return Emitter(Words(THOUGHTFUL, tail), eos={0}, splitter=Splitter(form, prompt), **more)


def test_thoughts_go_beside_the_answer() -> None:
    emitter = thoughtful()
    shown = [emitter.push(i, "A") for i in (1, 2, 3, 4, 5, 9, 6, 0)]
    told = [(token.text, token.thinking) for token in shown if token is not None]
    assert told == [
        *(("Hm", True), (" stop", True), (".", True), ("", True)),
        *(("Hello", False), (" ", False), (" sto", False)),
    ]
    assert (emitter.thinking, emitter.text, emitter.finish) == ("Hm stop.", "Hello  sto", "stop")
    assert emitter.ids == [1, 2, 3, 4, 5, 9, 6] and len(emitter.kinds) == 7


def test_a_stop_string_ends_the_answer_and_never_the_thought() -> None:
    emitter = thoughtful(stop=["stop"])
    feed(emitter, 1, 2, 3, 5, 6, 7, 5)
    assert (emitter.thinking, emitter.text, emitter.finish) == ("Hm stop.", "Hello ", "stop")
    assert emitter.ids == [1, 2, 3, 5, 6]


def test_a_stop_string_at_the_very_start_of_the_answer_leaves_the_thought_alone() -> None:
    emitter = thoughtful(stop=["Hel"])
    assert emitter.push(1, "A") == Token(1, "Hm", "A", thinking=True)
    feed(emitter, 3, 4, 5)
    assert (emitter.ids, emitter.thinking, emitter.text, emitter.finish) == ([1, 3, 4], "Hm.", "", "stop")


def test_a_thought_that_never_ends_is_all_there_is() -> None:
    for end in ("eos", "limit", "user"):
        emitter = thoughtful(tail="\ufffd", limit=2 if end == "limit" else None)
        told = feed(emitter, 1, 2)
        if end == "eos":
            emitter.push(0, "P")
        elif end == "user":
            emitter.close("cancelled")
        assert emitter.finish == {"eos": "stop", "limit": "length", "user": "cancelled"}[end]
        assert (emitter.thinking, emitter.text) == ("Hm stop\ufffd", "")
        assert told == ["Hm", " stop\ufffd" if end == "limit" else " stop"]


def test_a_token_with_both_shows_its_answer_with_the_next_one() -> None:
    emitter = thoughtful()
    told = [emitter.push(i, "A") for i in (1, 8, 9, 5)]
    assert [(token.text, token.thinking) for token in told if token is not None] == [
        *(("Hm", True), ("!", True), ("Yes ", False), ("Hello", False)),
    ]
    last = thoughtful(limit=2)
    feed(last, 1, 8)
    assert (last.thinking, last.text, last.finish) == ("Hm!", "Yes", "length")
