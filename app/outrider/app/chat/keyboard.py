"""Bytes from a terminal, cut into keys, escape sequences and pastes; what the terminal replies is dropped whole.

Any bytes may come, split anywhere. Loads no screen library.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from outrider.app.text import sanitize

ESCAPE_DELAY = 0.1  # seconds after which an ESC that nothing followed was the key
_LATE = 2.0  # seconds without a byte after which the rest of a reply or of a paste comes no more
_REMEMBERED = 30.0  # seconds in which the rest of a reply is still known for what it is
_TOGETHER = 0.03  # seconds between bytes that nobody typed one after the other
_LONGEST = 32  # bytes of a control sequence that is a key; the screen library knows none longer
_ENDLESS = 1 << 12  # bytes of one, or of a string, after which it is taken in without being kept

_CSI = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_CSI_BEGINS = re.compile(rb"\x1b\[[0-?]*[ -/]*")
_RXVT = re.compile(rb"\x1b\[\d+\$")  # a key with shift there, which lacks a final byte
_SS3 = re.compile(rb"\x1bO[0-9;]*[@-~]")
_SS3_BEGINS = re.compile(rb"\x1bO[0-9;]*")
_PASTE, _PASTE_ENDS = b"\x1b[200~", b"\x1b[201~"
# Three coordinates, each of one byte, or of a character in UTF-8 where the terminal was asked for that (mode 1005).
_X10_MOUSE = re.compile(rb"\x1b\[M[\x00\x20-\xff]{3}")
_UTF8_MOUSE = re.compile(
    rb"\x1b\[M(?:(?>[\xc2-\xdf][\x80-\xbf]|[\xc2-\xdf](?![\x80-\xbf]|\Z)|[\x00\x20-\xc1\xe0-\xff])){3}"
)
_STRING_ENDS = re.compile(rb"\x07|\x1b(?=[^\\])|\x1b\\|[\x03\r\x18\x1a]")
_REPLY = re.compile(
    rb"\x1b(?:\](?:\d{1,4}(?:;|\Z)|[lLI])|P(?:[$+]r|[>!](?:\||\Z)|\d)|_G"
    rb"|\[(?:[?>=<][0-?]*[ -/]*(?:[@-~]|\Z)|\d[\d;:]*\$?(?:[RSntcyuMm~]|\Z)))"
)
_CONTROL = re.compile("([\x00-\x08\x0b\x0c\x0e-\x1f\x7f]+)")
_OBEYED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_C1 = re.compile("[\x80-\x9f]")
_LINES = re.compile(r"\r(?=[^\r])|\r.*\r", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Input:
    """`keys`: each character is one. `sequence`: one escape sequence; ESC alone is the key. `paste`: text."""

    kind: Literal["keys", "sequence", "paste"]
    text: str


class InputDecoder:
    """Takes what was read, with the time, and gives out input. `tick` gives out what only time can tell.

    Lines that come together were pasted, also where the terminal does not mark a paste: all of them are one. One line
    with one enter at its end was typed.
    """

    def __init__(self, escape_delay: float = ESCAPE_DELAY) -> None:
        self._delay = escape_delay
        self._bytes = b""  # the beginning of a sequence
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._came = 0.0  # when the newest bytes did
        self._paste: bytearray | None = None  # of a marked paste that has not ended
        self._together = ""  # text that may be a paste, or part of one
        self._given_up = b"", 0.0  # a sequence whose end did not come in time, and when

    def feed(self, data: bytes, now: float) -> list[Input]:
        """What these bytes complete."""
        found = list(self._cooled(now))
        before, when = self._given_up
        self._given_up = b"", 0.0
        late = before + data
        if before and now - when < _REMEMBERED and (len(data) > 1 or data in b"\x07\\") and _REPLY.match(late):
            data = late
        self._bytes += data
        self._came = now
        found += self._scan(ended=False)
        return found

    def typed_ahead(self, data: bytes, now: float) -> list[Input]:
        """The same for what was typed while the terminal still edited lines itself, where enter is a line feed."""
        typed, escape, rest = data.partition(b"\x1b")
        lines, entered, begun = typed.decode("utf-8", "replace").rpartition("\n")
        found: list[Input] = []
        if entered:
            lines = _C1.sub("", _CONTROL.sub("", lines)).strip("\n")
            found += [Input("paste" if "\n" in lines else "keys", lines)] if lines else []
            found.append(Input("keys", "\r"))
        return found + self.feed(begun.encode() + escape + rest, now)

    def tick(self, now: float) -> list[Input]:
        """What has become clear because nothing more came."""
        found = list(self._cooled(now))
        if self._paste is not None:
            if now >= self._came + _LATE:
                found += self._pasted(self._paste + self._bytes)
                self._paste, self._bytes = None, b""
        elif self._bytes and now >= self._came + (self._delay if self._is_key() else _LATE):
            self._given_up = self._bytes, now
            found += self._scan(ended=True)
        elif self._utf8.getstate()[0] and now >= self._came + self._delay:
            found += self._typed(self._utf8.decode(b"", True))
        return found

    def wait(self, now: float) -> float | None:
        """Seconds until `tick` may have something; None where there is nothing to wait for."""
        if self._together:
            return max(0.0, self._came + _TOGETHER - now)
        if self._bytes or self._paste is not None or self._utf8.getstate()[0]:
            late = self._paste is not None or not (self._is_key() or not self._bytes)
            return max(0.0, self._came + (_LATE if late else self._delay) - now)
        return None

    # ------------------------------------------------------------------------------------------------ sequences

    def _is_key(self) -> bool:
        """Whether the bytes that wait may be a key by themselves: ESC, or alt with a character."""
        return len(self._bytes) <= 2 or self._bytes.startswith(b"\x1b[M") or bool(_RXVT.fullmatch(self._bytes))

    def _scan(self, *, ended: bool) -> Iterator[Input]:
        """Cut off what is whole; with `ended` the rest is taken for what it is."""
        while self._bytes:
            if self._paste is not None:
                if not self._end_of_paste(self._paste):
                    return
                yield from self._pasted(self._paste)
                self._paste = None
                continue
            at = self._bytes.find(b"\x1b")
            if at:
                text, self._bytes = (self._bytes, b"") if at < 0 else (self._bytes[:at], self._bytes[at:])
                yield from self._typed(self._utf8.decode(text, at > 0))
                continue
            if self._utf8.getstate()[0]:
                yield from self._typed(self._utf8.decode(b"", True))
            if (cut := self._sequence(ended=ended)) is None:
                return
            size, text = cut
            whole, self._bytes = self._bytes[:size], self._bytes[size:]
            if whole == _PASTE:
                self._paste = bytearray()
            elif text is None:
                continue
            elif text.startswith("\x1b"):
                yield from self._flushed()
                yield Input("sequence", text)
            else:
                yield from self._typed(text)

    def _sequence(self, *, ended: bool) -> tuple[int, str | None] | None:
        """Size of the sequence at the beginning and its text, None for what is dropped. None while it is not whole."""
        data = self._bytes
        if len(data) == 1 or data[1] == 0x1B:
            return (1, "\x1b") if ended or len(data) > 1 else None
        second = data[1:2]
        if second == b"[":
            return self._control_sequence(data, ended)
        if second in (b"]", b"P", b"X", b"^", b"_"):
            return self._string(data, ended)
        if second == b"O":
            return _cut(data, _SS3, _SS3_BEGINS, ended)
        size = 2 if data[1] < 0xC0 else 3 if data[1] < 0xE0 else 4 if data[1] < 0xF0 else 5
        if len(data) < size and not ended and _unfinished(data[1:]):
            return None
        text = data[1:size].decode("utf-8", "replace")[:1]
        return (1 + len(text.encode()) if text != "\ufffd" else 2), f"\x1b{text}"

    def _control_sequence(self, data: bytes, ended: bool) -> tuple[int, str | None] | None:
        if data.startswith(b"\x1b[M"):
            match = _UTF8_MOUSE.match(data) or _X10_MOUSE.match(data)
            sure = match is not None and (match.re is _UTF8_MOUSE or match.end() < len(data))
            if match is not None and (sure or ended):
                return match.end(), None
            waits = not ended and len(data) < 9 and all(byte >= 0x20 or not byte for byte in data[3:])
            return None if waits else (3, None)
        if data.startswith(b"\x1b[["):  # a function key of the Linux console
            return (4, data[:4].decode("ascii", "replace")) if len(data) > 3 else _unended(data, ended)
        return _cut(data, _CSI, _CSI_BEGINS, ended)

    def _string(self, data: bytes, ended: bool) -> tuple[int, str | None] | None:
        """A control string: a reply of the terminal, or alt with a letter and what was typed after it."""
        match = _STRING_ENDS.search(data, 2)
        if match is not None and match[0] in (b"\x07", b"\x1b\\"):
            return match.end(), None
        if match is None and not ended:
            if len(data) > _ENDLESS:
                self._bytes = data[:_LONGEST] + data[-1:]  # it is dropped in any case
            return None
        end = len(data) if match is None else match.start() + (match[0] in (b"\x18", b"\x1a"))
        if len(data) > 2 and _REPLY.match(data):
            return end, None
        return 2, _alone(data)

    # ------------------------------------------------------------------------------------------------ text

    def _end_of_paste(self, paste: bytearray) -> bool:
        """Move what belongs to the paste out of the bytes that wait; whether its end is among them."""
        at = self._bytes.find(_PASTE_ENDS)
        if at >= 0:
            paste += self._bytes[:at]
            self._bytes = self._bytes[at + len(_PASTE_ENDS) :]
            return True
        kept = next(
            (size for size in range(len(_PASTE_ENDS) - 1, 0, -1) if self._bytes.endswith(_PASTE_ENDS[:size])), 0
        )
        at = len(self._bytes) - kept
        paste += self._bytes[:at]
        self._bytes = self._bytes[at:]
        return False

    def _pasted(self, data: bytes | bytearray) -> Iterator[Input]:
        yield from self._flushed()
        if text := data.decode("utf-8", "replace").replace("\x00", ""):
            yield _paste(text)

    def _typed(self, text: str) -> Iterator[Input]:
        """Keys at once, but for lines: those wait until it is clear how many come together."""
        for part in _CONTROL.split(_C1.sub("", text)):
            if not part:
                continue
            if _CONTROL.fullmatch(part):
                yield from self._flushed()
                yield Input("keys", part)
            elif self._together or "\r" in part:
                self._together += part
            else:
                yield Input("keys", part)

    def _cooled(self, now: float) -> Iterator[Input]:
        if now >= self._came + _TOGETHER:
            yield from self._flushed()

    def _flushed(self) -> Iterator[Input]:
        """What waited: one line is keys, several are a paste."""
        text, self._together = self._together, ""
        if text:
            several = bool(_LINES.search(text)) and bool(text.strip("\r"))
            yield _paste(text) if several else Input("keys", text)


def _paste(text: str) -> Input:
    """Control characters become signs for them: no place that shows what was pasted obeys one."""
    return Input("paste", _OBEYED.sub(lambda match: sanitize(match[0]), text))


def _cut(
    data: bytes, whole: re.Pattern[bytes], begins: re.Pattern[bytes], ended: bool
) -> tuple[int, str | None] | None:
    """A sequence of this grammar at the beginning of `data`; what does not follow it is dropped."""
    if match := whole.match(data):
        return match.end(), match[0].decode() if match.end() <= _LONGEST else None
    match = begins.match(data)
    assert match is not None
    if match.end() == len(data) and len(data) <= _ENDLESS and not ended:
        return None
    if _RXVT.fullmatch(match[0]):
        return match.end(), match[0].decode()
    return match.end(), _alone(data) if match.end() == 2 else None


def _alone(data: bytes) -> str | None:
    """The key that two bytes are: alt with a letter; with a sign, the beginning of a reply is likelier."""
    return data[:2].decode() if data[1:2].isalpha() else None


def _unended(data: bytes, ended: bool) -> tuple[int, str | None] | None:
    return (len(data), None) if ended else None


def _unfinished(data: bytes) -> bool:
    """Whether more bytes could make a character of these."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return not decoder.decode(data)
