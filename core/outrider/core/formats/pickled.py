"""Tables of tensors that `torch.save` wrote (`.bin`, `.pt`, `.pth`), read as data: a name in a pickle can run code, and none
is followed but those of tensors and plain containers. Imports torch when a file is read, not before.
"""

from __future__ import annotations

import re
import struct
import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.base.file_kind import disguise
from outrider.core.formats.gguf.reader import AGAIN

from .safetensors import UNREADABLE

if TYPE_CHECKING:
    from torch import Tensor

SAFER = "Take these weights as safetensors, or ask whoever made them for a plain table of tensors."
# what torch raises for a damaged file, depending on where the damage is
_TROUBLE = (RuntimeError, OSError, EOFError, ValueError, LookupError, AttributeError, TypeError, AssertionError)
_TROUBLE += (ArithmeticError, UnpicklingError, struct.error, zipfile.BadZipFile)
_NAME = re.compile(r"GLOBAL (\S+) (?:was not an allowed global|whose module \S+ is blocked)")


def read_pickled(file: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, on the CPU; mapped, so that only those are read that are used, but in the oldest form.

    Raises ModelError where the file cannot be opened, or names what could run code, BrokenFileError where it is cut, damaged
    or holds something else than a table of tensors.
    """
    import torch

    _look(file)
    try:
        found = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except _TROUBLE as error:
        named = _NAME.search(str(error)) if isinstance(error, UnpicklingError) else None
        if named:
            raise ModelError(f"{file} asks for {named[1]}, which could run code when opened.", SAFER) from error
        raise BrokenFileError(f"{file} cannot be read as a table of tensors.", AGAIN) from error
    if not isinstance(found, dict):
        raise BrokenFileError(f"{file} holds a {type(found).__name__}, not a table of tensors.", SAFER)
    for name, value in found.items():
        if not isinstance(name, str) or not _plain(value):
            raise BrokenFileError(f"{file} holds something else than tensors under the name {name!r}.", SAFER)
    return {name: tensor.detach() for name, tensor in found.items()}


def _look(file: Path) -> None:
    """Raises ModelError for a file that cannot be opened, BrokenFileError for one that is empty or plainly something else."""
    try:
        with file.open("rb") as stream:
            head = stream.read(64)
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror or error}.", UNREADABLE) from error
    shown = disguise(head) if head else "empty"
    if shown:
        raise BrokenFileError(f"{file} is {shown}.", AGAIN)


def _plain(value: Any) -> bool:
    """Whether this is a tensor with numbers of its own in it, and not a sparse, quantised or promised one."""
    import torch

    if not isinstance(value, torch.Tensor):
        return False
    return value.layout == torch.strided and not value.is_quantized and value.device.type == "cpu"
