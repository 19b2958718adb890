"""What can go wrong between here and the model hub: whether it may pass, and how it is told to a person."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from .file_choice import Item

_PATIENCE = 60.0  # seconds; a hub that asks for a longer pause is not waited for
_PASSING = {408, 425, 429, 500, 502, 503, 504}
_RESET = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)")
_SIGN_IN = "sign in with `hf auth login`, or set HF_TOKEN"


class Told(msgspec.Struct, frozen=True):
    """A trouble going to the parent. `needed`: bytes of disk that are missing."""

    reason: str
    hint: str = ""
    needed: int = 0


class Trouble(Exception):
    """Nothing more comes from the hub; the text is a short reason, `hint` what to do next."""

    def __init__(self, reason: str, hint: str = "", needed: int = 0) -> None:
        super().__init__(reason)
        self.reason, self.hint, self.needed = reason, hint, needed

    def told(self) -> Told:
        """As a value."""
        return Told(self.reason, self.hint, self.needed)


class Cut(Exception):
    """An answer ended before it began."""


def of_network() -> tuple[type[Exception], ...]:
    """The client's network errors. Its HTTP library has another name in each major version, so the base is looked up."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    return (HfHubHTTPError.__mro__[1], OfflineModeIsEnabled, Cut)


def was_answered(error: Exception) -> bool:
    """Whether the hub is there at all."""
    return _status(error) is not None


def may_pass(error: Exception) -> bool:
    """Whether another try can help, and soon."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    status = _status(error)
    if isinstance(error, OfflineModeIsEnabled) or (pause_asked(error) or 0) > _PATIENCE:
        return False
    return status is None or status in _PASSING


def pause_asked(error: Exception) -> float | None:
    """Seconds for which the hub asked to be left alone, None if it did not."""
    headers = getattr(getattr(error, "response", None), "headers", {})
    after = str(headers.get("Retry-After", "")).strip()
    if after.isdigit():
        return float(after)
    limit = _RESET.search(str(headers.get("RateLimit", "")))
    return float(limit[1]) if limit else None


def in_short(error: Exception) -> str:
    """A few words for a progress line."""
    status = _status(error)
    if status == 429:
        return "the hub asks for a pause"
    return f"the hub answered {status}" if status else "no connection"


def explain(error: Exception, repo: str, revision: str) -> Trouble:
    """The reason and the next step for a person."""
    status = _status(error)
    if status is not None:
        return _refused(error, status, repo, revision)
    name = type(error).__name__
    if name == "OfflineModeIsEnabled":
        return Trouble("HF_HUB_OFFLINE is set", "Unset it to download.")
    text = " ".join(str(error).split())
    if "CERTIFICATE_VERIFY_FAILED" in text:
        hint = "Behind a proxy of your own, name its certificate in SSL_CERT_FILE."
        return Trouble("its certificate is not trusted here", hint)
    about = f" ({text[:100]})" if text else f" ({name})"
    return Trouble(f"the model hub cannot be reached{about}", "Check the connection, then try again.")


def _refused(error: Exception, status: int, repo: str, revision: str) -> Trouble:
    from huggingface_hub import constants

    page = f"{constants.ENDPOINT}/{repo}"
    by_name = {
        "GatedRepoError": ("its licence has to be accepted first", f"Accept it at {page}, {_SIGN_IN}, and try again."),
        "RevisionNotFoundError": (
            f"it has no branch, tag or commit {revision!r}",
            f"See {page}, or leave @{revision} out.",
        ),
        "DisabledRepoError": ("the hub has closed it", f"See {page}."),
        "RepositoryNotFoundError": (
            "there is no such public model",
            f"Check the spelling. If it is private or asks for its licence to be accepted, {_SIGN_IN}.",
        ),
    }
    for kind in type(error).__mro__:
        if kind.__name__ in by_name:
            return Trouble(*by_name[kind.__name__])
    if "EntryNotFoundError" in (kind.__name__ for kind in type(error).__mro__):
        return Trouble("a file of the model is gone", f"See {page}, or try again without a revision.")
    return _by_status(error, status)


def _by_status(error: Exception, status: int) -> Trouble:
    if status in (401, 403):
        return Trouble(
            f"the hub does not let this account in (HTTP {status})",
            f"If HF_TOKEN is set or `hf auth login` was used, the token may be wrong or lack rights; else {_SIGN_IN}.",
        )
    if status == 404:
        return Trouble("there is no such model or file", "Check the spelling.")
    if status == 429:
        pause = pause_asked(error)
        when = f"in {pause / 60:.0f} minutes" if pause and pause > 90 else f"in {pause:.0f} s" if pause else "later"
        return Trouble(
            "the hub limits how often it may be asked, and that is used up (HTTP 429)",
            f"Try again {when}; who signs in (`hf auth login`) may ask more often.",
        )
    if status >= 500:
        return Trouble(f"the hub itself has trouble (HTTP {status})", "Try again later.")
    return Trouble(f"the hub refused (HTTP {status})", "Check HF_ENDPOINT and any proxy.")


def start_of(status: int, headers: Mapping[str, str], item: Item, have: int) -> int:
    """Where in the file an answer begins: after the `have` bytes that are here, or at 0. Raises Trouble for any other answer."""
    length = headers.get("Content-Length", "")
    if headers.get("Content-Type", "").startswith("text/html"):
        raise no_hub()
    if status == 206:
        start, _, total = headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        if start.partition("-")[0] != str(have) or total not in (str(item.bytes), "*"):
            raise wrong_answer(item)
        return have
    if length.isdigit() and int(length) != item.bytes and "Content-Encoding" not in headers:
        raise wrong_answer(item)
    return 0


def wrong_answer(item: Item) -> Trouble:
    """The trouble with an answer that is not the file."""
    return Trouble(
        f"what the hub sends for {item.name} is not the {item.bytes} bytes that it listed",
        "Try again later; a proxy on the way may have answered instead.",
    )


def too_large(repo: str, item: Item) -> Trouble:
    """The trouble with a file that the hub does not send in one piece."""
    return Trouble(
        f"{item.name} has {item.bytes / 1e9:.0f} GB, more than the hub sends in one piece",
        f"Bring it with `hf download {repo} {item.path}`; it is found where that puts it.",
    )


def no_hub() -> Trouble:
    """The trouble with an answer from something else."""
    return Trouble(
        "what answered is not the model hub, but perhaps the login page of this network",
        "Open a page in a browser to sign in to the network, check HF_ENDPOINT, then try again.",
    )


def _status(error: Exception) -> int | None:
    response: Any = getattr(error, "response", None)
    return getattr(response, "status_code", None)
