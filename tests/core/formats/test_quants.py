"""Every block type against a scalar reading of its layout in float64."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest
import torch

from outrider.core.formats.quants import expand


def _half(data: bytes, at: int) -> float:
    return struct.unpack_from("<e", data, at)[0]


def _nibble(data: bytes, at: int, i: int) -> int:
    """Weight i of 32 in 16 bytes: the low halves first."""
    return data[at + i % 16] >> (4 if i >= 16 else 0) & 15


def _bit(data: bytes, at: int, i: int) -> int:
    return data[at + i // 8] >> (i % 8) & 1


def _signed(value: int) -> int:
    return value - 256 if value > 127 else value


def _q4_0(b: bytes) -> list[float]:
    return [_half(b, 0) * (_nibble(b, 2, i) - 8) for i in range(32)]


def _q4_1(b: bytes) -> list[float]:
    return [_half(b, 0) * _nibble(b, 4, i) + _half(b, 2) for i in range(32)]


def _q5_0(b: bytes) -> list[float]:
    return [_half(b, 0) * ((_nibble(b, 6, i) | _bit(b, 2, i) << 4) - 16) for i in range(32)]


def _q5_1(b: bytes) -> list[float]:
    return [_half(b, 0) * (_nibble(b, 8, i) | _bit(b, 4, i) << 4) + _half(b, 2) for i in range(32)]


def _q8_0(b: bytes) -> list[float]:
    return [_half(b, 0) * _signed(b[2 + i]) for i in range(32)]


def _k_scale(b: bytes, group: int) -> tuple[int, int]:
    """Six-bit scale and minimum of one of 8 groups, packed into bytes 4 to 15."""
    if group < 4:
        return b[4 + group] & 63, b[8 + group] & 63
    return b[8 + group] & 15 | b[group] >> 6 << 4, b[8 + group] >> 4 | b[4 + group] >> 6 << 4


def _q4_k(b: bytes) -> list[float]:
    found = []
    for i in range(256):
        scale, least = _k_scale(b, i // 32)
        q = b[16 + i // 64 * 32 + i % 32] >> (4 if i % 64 >= 32 else 0) & 15
        found.append(_half(b, 0) * scale * q - _half(b, 2) * least)
    return found


def _q5_k(b: bytes) -> list[float]:
    found = []
    for i in range(256):
        scale, least = _k_scale(b, i // 32)
        q = b[48 + i // 64 * 32 + i % 32] >> (4 if i % 64 >= 32 else 0) & 15
        q |= (b[16 + i % 32] >> (i // 32) & 1) << 4
        found.append(_half(b, 0) * scale * q - _half(b, 2) * least)
    return found


def _q6_k(b: bytes) -> list[float]:
    found = []
    for i in range(256):
        half, inner = divmod(i, 128)
        low = b[half * 64 + inner % 64] >> (4 if inner >= 64 else 0) & 15
        high = b[128 + half * 32 + inner % 32] >> (inner // 32 * 2) & 3
        found.append(_half(b, 208) * _signed(b[192 + i // 16]) * ((low | high << 4) - 32))
    return found


IQ4 = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def _iq4_nl(b: bytes) -> list[float]:
    return [_half(b, 0) * IQ4[_nibble(b, 2, i)] for i in range(32)]


def _iq4_xs(b: bytes) -> list[float]:
    found = []
    for i in range(256):
        group = i // 32
        low = b[4 + group // 2] >> (group % 2 * 4) & 15
        high = struct.unpack_from("<H", b, 2)[0] >> (2 * group) & 3
        found.append(_half(b, 0) * ((low | high << 4) - 32) * IQ4[_nibble(b, 8 + 16 * group, i % 32)])
    return found


def _mxfp4(b: bytes) -> list[float]:
    codes = [_nibble(b, 1, i) for i in range(32)]
    return [(-1 if code & 8 else 1) * FP4[code & 7] * 2.0 ** (b[0] - 127) for code in codes]


def _pair(b: bytes, at: int, i: int) -> int:
    """Two bits of weight i of 256 in 64 bytes."""
    return b[at + i // 128 * 32 + i % 32] >> (i % 128 // 32 * 2) & 3


def _q2_k(b: bytes) -> list[float]:
    found = []
    for i in range(256):
        scale = b[i // 16]
        found.append(_half(b, 80) * (scale & 15) * _pair(b, 16, i) - _half(b, 82) * (scale >> 4))
    return found


def _q3_k(b: bytes) -> list[float]:
    found = []
    for i in range(256):
        group = i // 16
        low = b[96 + group % 8] >> (group // 8 * 4) & 15
        high = b[104 + group % 4] >> (group // 4 * 2) & 3
        third = b[i % 32] >> (i // 32) & 1
        found.append(_half(b, 108) * ((low | high << 4) - 32) * (_pair(b, 32, i) + 4 * third - 4))
    return found


# kind: bytes of a block, places of its float16 numbers, reference
LAYOUTS: dict[str, tuple[int, tuple[int, ...], Callable[[bytes], list[float]]]] = {
    "Q4_0": (18, (0,), _q4_0),
    "Q4_1": (20, (0, 2), _q4_1),
    "Q5_0": (22, (0,), _q5_0),
    "Q5_1": (24, (0, 2), _q5_1),
    "Q8_0": (34, (0,), _q8_0),
    "Q4_K": (144, (0, 2), _q4_k),
    "Q5_K": (176, (0, 2), _q5_k),
    "Q6_K": (210, (208,), _q6_k),
    "IQ4_NL": (18, (0,), _iq4_nl),
    "IQ4_XS": (136, (0,), _iq4_xs),
    "MXFP4": (17, (), _mxfp4),
    "Q2_K": (84, (80, 82), _q2_k),
    "Q3_K": (110, (108,), _q3_k),
}


def _blocks(kind: str, count: int) -> list[bytes]:
    size, halves, _ = LAYOUTS[kind]
    rng = random.Random(kind)
    blocks = []
    for _ in range(count):
        data = bytearray(rng.randbytes(size))
        for at in halves:
            struct.pack_into("<e", data, at, rng.uniform(-2, 2))
        if kind == "MXFP4":
            data[0] = rng.randrange(120, 130)  # its power of two
        blocks.append(bytes(data))
    return blocks


@pytest.mark.parametrize("kind", LAYOUTS)
def test_blocks_against_the_scalar_reading(kind: str) -> None:
    blocks = _blocks(kind, 40)
    expected = torch.tensor([LAYOUTS[kind][2](block) for block in blocks], dtype=torch.float64).view(-1)
    found = expand(memoryview(bytearray(b"".join(blocks))), kind)
    assert found.dtype == torch.float32
    scale = expected.abs().max()
    assert (found.double() - expected).abs().max() <= 4e-7 * scale  # a few roundings of float32


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_tensor_longer_than_a_chunk_and_in_another_dtype(kind: str) -> None:
    few = b"".join(_blocks(kind, 8))
    one = expand(memoryview(bytearray(few)), kind)
    times = (1 << 18) // one.numel() * 2 + 3
    many = expand(memoryview(bytearray(few * times)), kind, torch.bfloat16)
    assert many.dtype == torch.bfloat16
    assert torch.equal(many, one.bfloat16().repeat(times))


@pytest.mark.parametrize(("kind", "dtype"), [("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_plain_numbers_are_copied(kind: str, dtype: torch.dtype) -> None:
    numbers = torch.linspace(-3, 3, 77).to(dtype)
    raw = bytearray(numbers.view(torch.uint8).numpy().tobytes())
    found = expand(memoryview(raw), kind)
    assert found.dtype == dtype
    raw[:] = bytes(len(raw))  # the memory behind it may go
    assert torch.equal(found, numbers)
    assert torch.equal(
        expand(memoryview(bytearray(numbers.view(torch.uint8).numpy())), kind, torch.float64), numbers.double()
    )


def test_the_smallest_powers_of_mxfp4() -> None:
    """Below the normal range of float32."""
    for power in (0, 1, 2, 254):
        found = expand(memoryview(bytearray([power, 0x21] + [0] * 15)), "MXFP4", torch.float64)
        assert found[0] == 0.5 * 2.0 ** (power - 127)
        assert found[16] == 2.0 ** (power - 127)
