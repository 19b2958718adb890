"""Reading no more than can be of use: files that a user names may be devices without end, or far too large. Loads nothing."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO


class TooLong(Exception):
    """There is more than the reader takes; what is beyond has not been read. `most`: bytes that it takes."""

    def __init__(self, most: int) -> None:
        super().__init__(f"more than {most} bytes")
        self.most = most


def read_all(file: BinaryIO, most: int) -> bytes:
    """What is left in `file`. Raises TooLong beyond `most` bytes, OSError."""
    data = file.read(most + 1)
    if len(data) > most:
        raise TooLong(most)
    return data


def read_path(path: Path, most: int) -> bytes:
    """What is in the file, device or pipe at `path`. Raises TooLong beyond `most` bytes, OSError."""
    with path.open("rb") as file:
        return read_all(file, most)
