"""Which editor a person has."""

from __future__ import annotations

import os
import shlex
import shutil

_USUAL = ("nano", "vim", "vi", "notepad")


def editor() -> list[str]:
    """The words that start $VISUAL, $EDITOR or an editor that is here; empty if there is none. Raises ValueError."""
    told = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if told:
        return shlex.split(told)
    return next(([name] for name in _USUAL if shutil.which(name)), [])
