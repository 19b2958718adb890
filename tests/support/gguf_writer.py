"""A small GGUF writer of our own."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

KINDS = {
    **{"F32": 0, "F16": 1, "BF16": 30, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11},
    **{"Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23, "MXFP4": 39},
}


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    """Type id and value; Python ints become uint32, floats float32."""
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _string(value)
    first = _value(value[0])
    items = b"".join(_value(item)[4:] for item in value)
    return struct.pack("<I", 9) + first[:4] + struct.pack("<Q", len(value)) + items


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[Sequence[int], str | int, bytes]],
    version: int = 3,
) -> Path:
    """A GGUF file; a tensor is its shape (slowest axis first), kind and bytes. Nothing stands behind the last byte."""
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata))
    head += b"".join(_string(key) + _value(value) for key, value in metadata.items())
    body = b""
    for name, (shape, kind, data) in tensors.items():
        body += b"\0" * (-len(body) % 32)
        head += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += struct.pack("<IQ", KINDS[kind] if isinstance(kind, str) else kind, len(body))
        body += data
    head += b"\0" * (-len(head) % 32)
    path.write_bytes(head + body)
    return path
