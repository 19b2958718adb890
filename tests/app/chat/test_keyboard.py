"""Bytes from a terminal: whatever comes, and however it is split, only what a person typed or pasted is left."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from outrider.app.chat.driver import Translator
from outrider.app.chat.keyboard import Input, InputDecoder

ESC, CSI, OSC, ST = b"\x1b", b"\x1b[", b"\x1b]", b"\x1b\\"
REPLIES = {
    "background": OSC + b"11;rgb:1e1e/1e1e/1e1e" + ST,
    "foreground": OSC + b"10;rgb:ffff/ffff/ffff\x07",
    "palette": OSC + b"4;7;rgb:c0c0/c0c0/c0c0\x07",
    "clipboard": OSC + b"52;c;" + b"aGVsbG8K" * 2000 + ST,
    "title": OSC + b"lsome title" + ST,
    "version": ESC + b"P>|xterm(388)" + ST,
    "setting": ESC + b"P1$r0m" + ST,
    "capability": ESC + b"P1+r524742=382F382F38" + ST,
    "unit": ESC + b"P!|00000000\x07",
    "graphics": ESC + b"_Gi=31;OK" + ST,
    "privacy message": ESC + b"^anything at all" + ST,
    "string": ESC + b"Xanything at all" + ST,
    "attributes": CSI + b"?62;4;22c",
    "second attributes": CSI + b">0;276;0c",
    "status": CSI + b"0n",
    "colours": CSI + b"?997;1n",
    "keyboard": CSI + b"?1u",
    "window": CSI + b"8;24;80t",
    "mode": CSI + b"?2026;2$y",
    "cursor": CSI + b"12;40R",
    "sixel": CSI + b"?1;0;256S",
    "no window": CSI + b"48;0;0;0;0t",
    "mouse": CSI + b"<35;10;5M",
    "mouse, X10": CSI + b"M \xe9\xe9",
    "mouse, UTF-8": CSI + b"M \xc3\x85\xc2\x90",
    "mouse, urxvt": CSI + b"35;10;5M",
    "numbers beyond everything": CSI + b"9" * 100 + b"u",
    "no character": CSI + b"99999999u",
    "two in one": CSI + b"97:65;1u",
}


def received(*parts: bytes | float) -> list[Input]:
    """What comes of bytes, a millisecond apart, and of pauses."""
    decoder, now, found = InputDecoder(), 100.0, []

    def pause(seconds: float) -> None:
        nonlocal now
        end = now + seconds
        while (wait := decoder.wait(now)) is not None and now + wait <= end:
            now += wait + 1e-6
            found.extend(decoder.tick(now))
        now = end

    for part in (*parts, 10.0):
        if isinstance(part, bytes):
            found.extend(decoder.feed(part, now))
            pause(0.001)
        else:
            pause(part)
    assert decoder.wait(now) is None
    return found


def keys(found: Iterable[Input]) -> list[str]:
    """The names of the keys, as the screen library knows them."""
    translator = Translator()
    events = [event for item in found for event in translator.events(item)]
    return [event.key for event in events if hasattr(event, "key")]  # type: ignore[attr-defined]


def texts(found: Iterable[Input]) -> str:
    return "".join(item.text for item in found if item.kind != "sequence")


@pytest.mark.parametrize("name", REPLIES)
def test_a_reply_leaves_nothing_however_it_is_split(name: str) -> None:
    reply = REPLIES[name]
    for cut in range(min(len(reply), 40)):
        for pause in (0.0, 0.05):
            assert keys(received(b"a" + reply[:cut], pause, reply[cut:] + b"b")) == ["a", "b"], (cut, pause)
    assert keys(received(*(reply[at : at + 1] for at in range(min(len(reply), 40))), reply[40:], b"b")) == ["b"]


LATE = [name for name, reply in REPLIES.items() if len(reply) < 100 and b"M" not in reply and reply[1:2] not in b"^X"]


@pytest.mark.parametrize("name", LATE)
def test_the_rest_of_a_reply_comes_late(name: str) -> None:
    reply = REPLIES[name]
    first = 4 if name in ("graphics", "title", "unit") else 1  # of these less could be anything
    for cut in range(first, len(reply) - 1):
        found = keys(received(reply[:cut], 3.0, reply[cut:], b"b"))
        assert [key for key in found if key != "escape" and not key.startswith("alt+")] == ["b"], cut


def test_bytes_that_are_no_text() -> None:
    assert texts(received(b"caf\xe9 x")) == "caf\ufffd x"
    assert texts(received(b"caf\xc3", b"\xa9")) == "café" and texts(received(b"\xf0\x9f", b"\x98\x80")) == "😀"
    assert texts(received(b"\xc3", 1.0, b"a")) == "\ufffda" and texts(received(b"\xc3\x1b[Aa")) == "\ufffda"
    assert texts(received(b"\xff\xfe\x80\x9b\xc2\x85")) == "\ufffd" * 4  # and the C1 character is dropped
    assert texts(received(b"\x1b[200~caf\xe9\x00\x1b[201~")) == "caf\ufffd"


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes_at_all(seed: int) -> None:
    chance = random.Random(seed)
    alphabet = bytes(range(256)) + b"\x1b[]P_O;?<Mmu~\x07\\" * 8
    data = bytes(chance.choices(alphabet, k=1500))
    parts: list[bytes | float] = []
    while data:
        size = chance.choice((1, 2, 7, 100))
        parts += [data[:size], chance.choice((0.0, 0.01, 0.15, 2.5))]
        data = data[size:]
    for key in keys(received(*parts, 3.0, b"\x1b[201~", 3.0, b"\x03")):
        assert key
    assert keys(received(*parts, 3.0, b"\x1b[201~", 3.0, b"q"))[-1:] == ["q"]


def test_keys() -> None:
    assert keys(received(b"\x1b[3$", 0.2, b"\x1b[7$\x1b[A")) == ["shift+delete", "shift+home", "up"]
    assert keys(received(b"\x1b")) == ["escape"] and keys(received(b"\x1b\x1b")) == ["escape", "escape"]
    assert keys(received(b"\x1b[A\x1bOP\x1b[1;5C\x1b[[A\x1b[13;2u")) == ["up", "f1", "ctrl+right", "f1", "shift+enter"]
    assert (
        keys(received(b"\x1b[1", b";5C")) == ["ctrl+right"] and keys(received(b"\x1bx", b"\x1b", b"x")) == ["alt+x"] * 2
    )
    assert not keys(received(b"\x1b]")) and not keys(received(b"\x1b[")) and keys(received(b"\x1bP")) == ["alt+shift+p"]
    assert keys(received(b"\x1b]hello\r")) == [*"hello", "enter"] and keys(received(b"\x1bPx\r"))[1:] == ["x", "enter"]
    assert keys(received(b"\x1b\xc3\xa9")) and keys(received(b"\x03\x11")) == ["ctrl+c", "ctrl+q"]


def test_how_long_the_escape_key_waits() -> None:
    decoder = InputDecoder()
    decoder.feed(b"\x1b", 5.0)
    wait = decoder.wait(5.0)
    assert wait is not None and wait <= 0.1
    assert decoder.tick(5.0 + wait) == [Input("sequence", "\x1b")] and decoder.wait(5.2) is None


@pytest.mark.parametrize(
    ("parts", "kinds"),
    [
        ((b"hello\r",), [("keys", "hello\r")]),
        ((b"hello", b"\r"), [("keys", "hello"), ("keys", "\r")]),
        ((b"one\r", 0.1, b"two\r"), [("keys", "one\r"), ("keys", "two\r")]),
        ((b"\r\r",), [("keys", "\r\r")]),
        ((b"hi\r\x11",), [("keys", "hi\r"), ("keys", "\x11")]),
        ((b"a\nb\r",), [("keys", "a\nb\r")]),  # ctrl+j is a key
        ((b"a\rb\rc\r",), [("paste", "a\rb\rc\r")]),
        ((b"one\rtwo",), [("paste", "one\rtwo")]),
        ((b"one\r\ntwo\r\n",), [("paste", "one\r\ntwo\r\n")]),
        ((b"one\r", b"two\r", b"three\r"), [("paste", "one\rtwo\rthree\r")]),
        ((b"o", b"\r", b"t", b"\r"), [("keys", "o"), ("paste", "\rt\r")]),
        ((b"\x1b[200~a\rb\x1b[20", b"1~c"), [("paste", "a\rb"), ("keys", "c")]),
        ((b"\x1b[200~a\x1b[31mb\x1b[201~",), [("paste", "a␛[31mb")]),
        ((b"\x1b[200~abc", 3.0, b"x"), [("paste", "abc"), ("keys", "x")]),  # its end never came
    ],
)
def test_lines_that_come_together_are_a_paste(parts: tuple[bytes | float, ...], kinds: list[tuple[str, str]]) -> None:
    assert [(item.kind, item.text) for item in received(*parts)] == kinds


def test_what_was_typed_before_the_chat_was_there() -> None:
    def ahead(data: bytes) -> list[tuple[str, str]]:
        return [(item.kind, item.text) for item in InputDecoder().typed_ahead(data, 1.0)]

    assert ahead(b"hello\n") == [("keys", "hello"), ("keys", "\r")]
    assert ahead(b"hello\nnext\x1b[?1u") == [
        ("keys", "hello"),
        ("keys", "\r"),
        ("keys", "next"),
        ("sequence", "\x1b[?1u"),
    ]
    assert ahead(b"a\nb\n") == [("paste", "a\nb"), ("keys", "\r")]
    assert ahead(b"hello") == [("keys", "hello")] and ahead(b"\x1b[?1u") == [("sequence", "\x1b[?1u")]


def test_much_is_read_in_no_time() -> None:
    """A clipboard of megabytes, as a reply and as a paste, in the pieces in which a terminal gives them."""
    data = OSC + b"52;c;" + b"QUJD" * 300_000 + ST + b"\x1b[200~" + b"line of text\r" * 90_000 + b"\x1b[201~"
    decoder, found = InputDecoder(), []
    for at in range(0, len(data), 4096):
        found += decoder.feed(data[at : at + 4096], at / 1e9)
    assert [(item.kind, len(item.text)) for item in found] == [("paste", 13 * 90_000)]
