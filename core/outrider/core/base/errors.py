"""What can go wrong, as one tree.

OutriderError            has `message` (what and why), `hint` (what to do next) and `usage` (exit code 2 instead of 1)
├── UsageError           the request itself is wrong: an option, a name, an empty prompt
├── ModelError           a model cannot be found, read or run
│   └── BrokenFileError  a file is truncated or corrupt
├── DrafterError         a drafter does not exist, does not fit, or failed to load
├── DownloadError        no source answered, or what came was broken
└── Cancelled            the user stopped the job; not a failure
"""

from __future__ import annotations


class OutriderError(Exception):
    """A failure that a person can act on: `message` says what and why, `hint` what to do next."""

    usage = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(OutriderError):
    """The request is wrong in itself; trying again unchanged cannot help."""

    usage = True


class ModelError(OutriderError):
    """A model cannot be found, read or run here."""


class BrokenFileError(ModelError):
    """A model file is truncated or corrupt."""


class DrafterError(OutriderError):
    """A drafter does not exist, does not fit the target, or failed to load."""


class DownloadError(OutriderError):
    """No source answered, or what arrived failed its check."""


class Cancelled(OutriderError):
    """The user stopped the job."""

    def __init__(self) -> None:
        super().__init__("stopped")
