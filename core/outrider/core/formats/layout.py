"""How a stored matrix is quantised, as far as headers tell. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Coding = Literal["affine", "scaled", "table", "float8"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Codes of a matrix [rows, columns].

    `coding`: whole numbers with an offset, signed ones without, entries of a table, or floats.
    """

    rows: int
    columns: int
    bits: int  # of a code in memory: 4 or 8
    group: int  # codes that share a scale
    coding: Coding
    per_group: int  # bytes of a scale and an offset

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and offsets."""
        return self.rows * (self.columns * self.bits // 8 + self.columns // self.group * self.per_group)


# kinds of GGUF blocks: bits of a code, codes that share a scale, coding, bytes of scale and offset
KINDS: dict[str, tuple[int, int, Coding, int]] = {
    "Q4_0": (4, 32, "affine", 6),
    "Q4_1": (4, 32, "affine", 4),
    "Q5_0": (8, 32, "scaled", 2),
    "Q5_1": (8, 32, "affine", 4),
    "Q8_0": (8, 32, "scaled", 2),
    "IQ4_NL": (4, 32, "table", 2),
    "IQ4_XS": (4, 32, "table", 4),
    "MXFP4": (4, 32, "table", 4),
    "Q2_K": (4, 16, "affine", 8),
    "Q3_K": (4, 16, "affine", 8),
    "Q4_K": (4, 32, "affine", 8),
    "Q5_K": (8, 32, "affine", 8),
    "Q6_K": (8, 16, "scaled", 4),
}


def of_blocks(kind: str, rows: int, columns: int) -> Layout | None:
    """The layout of a matrix of GGUF blocks; None for plain numbers."""
    return Layout(rows, columns, *KINDS[kind]) if kind in KINDS else None
