"""Child process: brings files of a model repository over the hub's own client, and goes on where an earlier try ended.

    python -m outrider.core.library.hubget FOLDER

FOLDER/want.json says what to bring. What that is in files stands in FOLDER/plan.json before the first byte comes; the
files go to FOLDER/files, each growing under its own name. FOLDER/status says why nothing moves, if that is so. It ends
with 0, with FULL if the disk is full, or with 1 and the reason in FOLDER/trouble.json.

Files are streamed by the loop below and not by the client's own download call: that one begins a file anew in every
process, and gives up where a connection is reset.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from outrider.core.formats import shards

from . import hubtrouble
from .catalogue import File
from .file_choice import Item, NoChoice, choose, has_tokenizer
from .hubtrouble import Trouble
from .locks import lock

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

T = TypeVar("T")

FULL = 28  # exit status: with the disk full, a reason could not be written
NO_SPACE = {errno.ENOSPC, errno.EDQUOT} if hasattr(errno, "EDQUOT") else {errno.ENOSPC}
_AT_ONCE = 4  # files
_MARGIN = 16 << 20  # bytes that stay free
_TRIES = 8  # in a row without a new byte
_PATIENCE = 60.0  # seconds that are waited between such tries, all together; the last wait may go beyond
_TRIES_UNHEARD = 2  # while the hub has not answered once: there may be no network at all
_LONGEST = 30.0  # seconds between two tries


class Want(msgspec.Struct, frozen=True):
    """What to bring. `files`: known beforehand, else the hub is asked which they are. `wait`: seconds of the first pause."""

    repo: str
    revision: str = ""
    label: str = ""
    files: tuple[File, ...] = ()
    wait: float = 1.0


class Plan(msgspec.Struct, frozen=True):
    """What a hub repository is going to send. `revision` is the commit."""

    revision: str
    files: tuple[Item, ...]
    license: str = ""
    label: str = ""
    labels: tuple[str, ...] = ()
    template: bool = True  # False: none of its small files holds a chat template

    @property
    def nbytes(self) -> int:
        """Size of all its files."""
        return sum(file.bytes for file in self.files)


def read_plan(room: Path) -> Plan | None:
    """The plan of a try, this one or an earlier one; None if there is no usable one."""
    try:
        return msgspec.json.decode((room / "plan.json").read_bytes(), type=Plan)
    except (OSError, msgspec.MsgspecError):
        return None


def bring(room: Path) -> None:
    """Plan, then download. Raises Trouble, OSError from the disk."""
    want = msgspec.json.decode((room / "want.json").read_bytes(), type=Want)
    with lock(room / "lock", lambda: None):  # a child whose parent was killed may still be ending
        transfer = _Transfer(room, want)
        transfer.prepare(_known(want) if want.files else transfer.ask())
        transfer.run()


def _known(want: Want) -> Plan:
    return Plan(want.revision, tuple(Item(file.name, file.bytes, file.sha256) for file in want.files))


class _Listing(msgspec.Struct, frozen=True):
    """What a repository holds at a commit, by path."""

    commit: str
    items: dict[str, Item]
    license: str


def _listing(want: Want) -> _Listing:
    """Asks the hub. Raises the client's errors, Trouble."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HFValidationError

    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    try:
        found = HfApi(library_name="outrider").model_info(
            want.repo, revision=want.revision or None, files_metadata=True, timeout=timeout
        )
    except HFValidationError as error:
        raise Trouble("that is not a valid model id", "An id has the form owner/name.") from error
    except hubtrouble.of_network():
        raise
    except (ValueError, TypeError, KeyError) as error:  # an answer of another form
        raise hubtrouble.no_hub() from error
    license_ = str(getattr(found.card_data, "license", None) or "")
    return _Listing(
        found.sha or want.revision, {item.path: item for item in map(_item, found.siblings or [])}, license_
    )


def _item(sibling: RepoSibling) -> Item:
    """A file as it is listed; small ones have no hash of their own there, but a blob id."""
    sha256 = sibling.lfs.sha256 if sibling.lfs else ""
    size = sibling.size if sibling.size is not None else -1
    return Item(sibling.rfilename, size, sha256, git="" if sha256 else sibling.blob_id or "")


def _sized(repo: str, item: Item, commit: str) -> Item:
    """The file with its size, which the listing does not have."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    found = get_hf_file_metadata(hf_hub_url(repo, item.path, revision=commit or None))
    if found.size is None:
        raise Trouble(f"the hub does not say how large {item.path} is", "Check HF_ENDPOINT: not every mirror does.")
    sha256 = found.etag if found.etag and len(found.etag) == 64 else ""
    return Item(item.name, found.size, item.sha256 or sha256, item.remote, item.git)


class _Transfer:
    """The files of one plan going to `room`/files, a few at a time."""

    def __init__(self, room: Path, want: Want) -> None:
        self._plan = Plan("", ())
        self._room, self._want = room, want
        self._files = room / "files"
        self._stop = threading.Event()  # one file failed for good
        self._heard = False  # the hub answered at least once
        self._troubled = False  # and now it does not
        self._commit = want.revision
        before = read_plan(room)
        self._kept = {_identity(item, before.revision) for item in before.files} if before else set()

    def ask(self) -> Plan:
        """What to bring of the repository, by its listing and the small files that tell of the others. Raises Trouble."""
        listing = self.patiently(lambda: _listing(self._want))
        self._commit = listing.commit
        try:
            chosen = choose(listing.items.values(), self._want.label, self._index(listing.items))
        except NoChoice as error:
            raise Trouble(str(error), error.hint.replace("NAME:", f"{self._want.repo}:")) from error
        items = tuple(map(self._sized, chosen.items))
        return Plan(listing.commit, items, listing.license, chosen.label, chosen.labels, self._has_template(items))

    def _index(self, items: Mapping[str, Item]) -> tuple[str, ...] | None:
        """The files that the repository's index names, if it has one and that matters."""
        if self._want.label or shards.INDEX not in items or "config.json" not in items:
            return None
        item = self._sized(items[shards.INDEX])
        try:
            return shards.indexed(self._read(item))
        except ValueError as error:
            (self._files / item.name).unlink()
            raise Trouble(f"its {item.name} names no files", "Take another form or revision of this model.") from error

    def _has_template(self, items: Sequence[Item]) -> bool:
        """Whether a model in safetensors can chat, as far as its small files tell; a GGUF tells when it is here."""
        files = {item.name: item for item in items}
        if not has_tokenizer(files) or any(name.startswith("chat_template.") for name in files):
            return True
        settings = files.get("tokenizer_config.json")
        try:
            return settings is not None and bool(
                msgspec.json.decode(self._read(settings), type=dict).get("chat_template")
            )
        except msgspec.MsgspecError:  # opening the model says so
            return True

    def _read(self, item: Item) -> bytes:
        """A file of the repository, brought before there is a plan; it stays for the plan. Raises Trouble."""
        if item.bytes > shards.LARGEST_INDEX:
            raise Trouble(f"{item.name} is too large for what it is", "Take another form or revision of this model.")
        self._files.mkdir(exist_ok=True)
        if _identity(item, self._commit) not in self._kept:
            (self._files / item.name).unlink(missing_ok=True)
        self._bring(item)
        self._kept.add(_identity(item, self._commit))
        return (self._files / item.name).read_bytes()

    def _sized(self, item: Item) -> Item:
        return self.patiently(lambda: _sized(self._want.repo, item, self._commit)) if item.bytes < 0 else item

    def prepare(self, plan: Plan) -> None:
        """Write the plan, and delete what is no part of it. Raises Trouble if there is too little room for the rest."""
        from huggingface_hub import constants

        stays = {item.name for item in plan.files if _identity(item, plan.revision) in self._kept}
        self._files.mkdir(exist_ok=True)
        for path in self._files.iterdir():
            if path.name not in stays:
                path.unlink()
        draft = self._room / "plan.partial"
        draft.write_bytes(msgspec.json.encode(plan))
        draft.replace(self._room / "plan.json")
        self._plan, self._commit = plan, plan.revision
        for item in plan.files:
            if item.bytes > constants.MAX_HTTP_DOWNLOAD_SIZE:
                raise hubtrouble.too_large(self._want.repo, item)
        missing = sum(item.bytes - self._here(item) for item in plan.files)
        if missing and shutil.disk_usage(self._files).free < missing + _MARGIN:
            raise Trouble("the disk is full", needed=missing + _MARGIN)

    def run(self) -> None:
        """Bring every file. The first failure ends all of them and is raised."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            tasks = [pool.submit(self._bring, item) for item in self._plan.files]
            try:
                done, _ = wait(tasks, return_when=FIRST_EXCEPTION)
                for task in done:
                    task.result()
            finally:
                self._stop.set()
                pool.shutdown(cancel_futures=True)

    def patiently(self, call: Callable[[], T], progress: Callable[[], int] = lambda: 0) -> T:
        """The result of `call`, tried again while the trouble may pass. Tries that brought something do not count."""
        failures, waited = 0, 0.0
        while True:
            before = progress()
            try:
                result = call()
            except hubtrouble.of_network() as error:
                self._heard = self._heard or hubtrouble.was_answered(error)
                failures, waited = (0, 0.0) if progress() > before else (failures + 1, waited)
                few = failures < (_TRIES if self._heard else _TRIES_UNHEARD) and waited < _PATIENCE
                if self._stop.is_set() or not few or not hubtrouble.may_pass(error):
                    raise hubtrouble.explain(error, self._want.repo, self._want.revision) from error
                backoff = self._want.wait * min(2.0 ** max(failures - 1, 0), _LONGEST)
                seconds = hubtrouble.pause_asked(error) or backoff
                waited += seconds
                self._pause(seconds, error)
            else:
                self._heard = True
                self._all_is_well()
                return result

    def _pause(self, seconds: float, error: Exception) -> None:
        status, why = self._room / "status", hubtrouble.in_short(error)
        self._troubled = True
        status.write_text(f"{why}, trying again in {seconds:.0f} s", "utf-8")
        self._stop.wait(seconds)
        status.write_text(f"{why}, trying again", "utf-8")

    def _all_is_well(self) -> None:
        if self._troubled:
            (self._room / "status").unlink(missing_ok=True)
            self._troubled = False

    def _here(self, item: Item) -> int:
        path = self._files / item.name
        return path.stat().st_size if path.exists() else 0

    def _bring(self, item: Item) -> None:
        if self._here(item) > item.bytes:
            (self._files / item.name).unlink()
        (self._files / item.name).touch()
        while self._here(item) < item.bytes and not self._stop.is_set():
            self.patiently(lambda: self._stream(item), lambda: self._here(item))

    def _stream(self, item: Item) -> None:
        """One request for the rest of a file. Raises the client's errors, Trouble, OSError from the disk."""
        from huggingface_hub import constants, get_session, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

        have = self._here(item)
        headers = build_hf_headers(library_name="outrider") | {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        url = hf_hub_url(self._want.repo, item.path, revision=self._commit or None)
        # The client follows redirects to other hosts, and leaves the token out there.
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with get_session().stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as response:
            hf_raise_for_status(response)
            self._heard = True
            start = hubtrouble.start_of(response.status_code, response.headers, item, have)
            with (self._files / item.name).open("r+b") as file:
                file.seek(start)
                if start < have:
                    file.truncate()
                for chunk in response.iter_bytes():  # as they come: a cut loses nothing that arrived
                    if file.tell() + len(chunk) > item.bytes:
                        raise hubtrouble.wrong_answer(item)
                    file.write(chunk)
                    self._all_is_well()
                    if self._stop.is_set():
                        return
        if self._here(item) <= have:
            raise hubtrouble.Cut(f"no byte of {item.name} came")


def _identity(item: Item, commit: str) -> tuple[Any, ...]:
    """What makes two files of a plan the same one."""
    return (item.name, item.bytes, item.sha256 or item.git or commit)


def _end_with_parent() -> None:
    """Stop when the other end of stdin is closed: whoever started this process is gone."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def main(arguments: list[str]) -> int:
    """Bring what FOLDER/want.json says; the exit status."""
    _end_with_parent()
    return serve(Path(arguments[0]))


def serve(room: Path) -> int:
    """Bring what want.json in a folder says, and leave the reason there if that fails; the exit status."""
    for name in ("status", "trouble.json"):
        (room / name).unlink(missing_ok=True)
    try:
        bring(room)
        return 0
    except Trouble as trouble:
        told = trouble.told()
    except OSError as error:
        if error.errno in NO_SPACE:
            return FULL
        told = hubtrouble.Told(
            f"the library cannot be written: {error}", "Make it writable, or move it with OUTRIDER_HOME."
        )
    with suppress(OSError):  # the parent then tells what the log says
        (room / "trouble.json").write_bytes(msgspec.json.encode(told))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
