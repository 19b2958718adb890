"""Frames as bytes: a 4-byte little-endian length, then one msgpack map."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

MAX_FRAME = 256 << 20  # bytes; a longer length means the stream is out of step

_encoder = msgspec.msgpack.Encoder()
_HEAD = struct.Struct("<I")


class ProtocolError(Exception):
    """The other side sent something that is not a frame."""


def pack(frame: msgspec.Struct) -> bytes:
    """One frame as it travels: length, then msgpack."""
    body = _encoder.encode(frame)
    return _HEAD.pack(len(body)) + body


class Unpacker:
    """Turns bytes, in whatever pieces they come, back into frames. `Unpacker(AnyEvent)` for a client."""

    def __init__(self, frames: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(frames)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Frames completed by `data`, in order. Raises ProtocolError for a stream that is out of step."""
        self._buffer += data
        frames = []
        while len(self._buffer) >= _HEAD.size:
            (size,) = _HEAD.unpack_from(self._buffer)
            if size > MAX_FRAME:
                raise ProtocolError(f"a frame of {size} bytes: something else was written into the pipe")
            end = _HEAD.size + size
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[_HEAD.size : end])
            del self._buffer[:end]
            try:
                frames.append(self._decoder.decode(body))
            except msgspec.MsgspecError as error:
                raise ProtocolError(f"a frame that is none of ours: {error}") from error
        return frames
