"""A full disk is called full and a read-only one read-only, wherever something is written; nobody else can read it."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
from store_support import chat, filled, says

from outrider.app import files
from outrider.app.chat.input.drafts import Draft, Drafts
from outrider.app.config.edit import replace
from outrider.app.store import backups, rescue, schema
from outrider.app.store import opening as opening_module
from outrider.app.store.chats import Store
from outrider.app.store.problems import Busy, Damaged, StoreError, explain
from outrider.app.store.writing import write_file

FULL, READ_ONLY = "the disk is full", "the file system is read-only"


def full(*_: object, **__: object) -> int:
    """What the system says of a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def sqlite_error(text: str, code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=9, used=9, free=0))


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=real(path).f_flag | os.ST_RDONLY))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("database or disk is full", sqlite3.SQLITE_FULL),
        ("disk I/O error", sqlite3.SQLITE_IOERR_SHMSIZE),
        ("disk I/O error", sqlite3.SQLITE_IOERR_WRITE),
        ("unable to open database file", sqlite3.SQLITE_CANTOPEN),
    ],
)
@pytest.mark.usefixtures("no_room")
def test_every_error_on_a_full_disk_names_it(path: Path, text: str, code: int) -> None:
    told = explain(sqlite_error(text, code), path)
    assert isinstance(told, Busy) and FULL in told.message and "damaged" not in told.message
    assert "move" not in told.hint and "name" not in told.hint


@pytest.mark.parametrize(
    "code",
    [sqlite3.SQLITE_READONLY, sqlite3.SQLITE_READONLY_DBMOVED, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR_LOCK],
)
@pytest.mark.usefixtures("read_only")
def test_every_error_on_a_read_only_disk_names_it(path: Path, code: int) -> None:
    told = explain(sqlite_error("attempt to write a readonly database", code), path)
    assert isinstance(told, Busy) and READ_ONLY in told.message and "chmod" not in told.hint


def test_an_error_of_the_disk_is_no_damage(path: Path) -> None:
    path.parent.mkdir()
    told = explain(sqlite_error("disk I/O error", sqlite3.SQLITE_IOERR_READ), path)
    assert not isinstance(told, Damaged | Busy) and "cannot be read or written" in told.message
    assert isinstance(explain(sqlite_error("malformed", sqlite3.SQLITE_CORRUPT_INDEX), path), Damaged)


def test_a_store_that_fills_up_takes_everything_later(path: Path) -> None:
    with filled(path) as store:
        store._db.execute("PRAGMA max_page_count = 20")
        with pytest.raises(Busy, match=FULL):
            store.put_node("C1", says("long", "river " * 50_000))
        store._db.execute("PRAGMA max_page_count = 2000")
        store.put_node("C1", says("long", "river " * 50_000))


@pytest.mark.usefixtures("read_only")
def test_a_store_on_a_read_only_disk_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path).close()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with Store.open(path) as store:
        assert store.trouble is not None and READ_ONLY in store.trouble.message and "chmod" not in store.trouble.hint
        assert [row.title for row in store.chats()] == ["Rivers"]


@pytest.mark.usefixtures("no_room")
def test_a_store_on_a_full_disk_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path).close()
    monkeypatch.setattr(opening_module, "_look_through", full)
    with Store.open(path) as store:
        assert isinstance(store.trouble, Busy) and FULL in store.trouble.message
        assert [row.title for row in store.chats()] == ["Rivers"]


def test_a_damaged_store_on_a_full_disk_is_read_and_left(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path).close()
    data = b"\0" * 100 + path.read_bytes()[100:]
    path.write_bytes(data)
    monkeypatch.setattr(os, "replace", full)
    with Store.open(path) as store:
        assert isinstance(store.trouble, Damaged) and f"They cannot be repaired: {FULL}." in store.trouble.message
        assert [row.title for row in store.chats()] == ["Rivers"]
    assert path.read_bytes() == data and not list(path.parent.glob("*.damaged-*"))


def test_files_that_cannot_be_written_are_named_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", full)
    for number, write in enumerate(
        (lambda one: write_file(one, "text"), lambda one: replace(one, "text"), lambda one: files.write(one, b""))
    ):
        path = tmp_path / str(number)
        with pytest.raises(OSError, match="No space") as told:
            write(path)
        assert told.value.filename == str(path) and files.reason(told.value) == FULL
    assert not list(tmp_path.iterdir())


def test_a_rescue_file_that_no_folder_takes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "replace", full)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with pytest.raises(StoreError, match=f"could not be saved anywhere: {FULL}"):
        rescue.rescue(path, [lambda store: (store.put_chat(chat("C1")), store.put_node("C1", says("a", "words")))])


def test_a_rescue_file_goes_to_no_shared_folder(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def works(folder: Path) -> Path | None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
        return rescue.rescue(
            path, [lambda store: (store.put_chat(chat("C1")), store.put_node("C1", says("a", "words")))]
        )

    monkeypatch.setattr(rescue.paths, "state_dir", lambda: Path("/proc/nothing"))
    path.parent.touch()  # no folder
    session, shared = tmp_path / "session", tmp_path / "shared"
    session.mkdir(0o700)
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(StoreError, match="could not be saved anywhere"):
        works(shared)
    file = works(session)
    assert file is not None and file.parent == session / "outrider"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_modes(path: Path, home: Path) -> None:
    """Whatever the mask of the user says."""
    before = os.umask(0)
    try:
        with filled(path) as store:
            assert (path.parent / "chats.db-wal").exists() and store.trouble is None
            assert backups.back_up(path)
            drafts = Drafts()
            drafts.save("C1", Draft("unsent"))
            drafts.leave()
            replace(home / "config" / "config.toml", "")
            found = [*path.parent.rglob("*"), *home.rglob("*")]
            wide = [one for one in found if one.stat().st_mode & 0o777 != (0o700 if one.is_dir() else 0o600)]
            assert len(found) > 9 and not wide
    finally:
        os.umask(before)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


# ------------------------------------------------------------------------------------------------ copies


def test_a_copy_a_week_and_only_a_few(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with filled(path):
        assert backups.due(path)
        made = []
        for week in range(6):
            monkeypatch.setattr(backups.time, "strftime", lambda _, week=week: f"2026-01-{10 + 7 * week}")
            made.append(backups.back_up(path))
        assert not backups.due(path)
        left = sorted((path.parent / "backups").iterdir())
        assert left == made[-3:]
        os.utime(left[-1], (0, 0))
        assert backups.due(path)
    with Store.open(left[0]) as copy:
        assert [row.title for row in copy.chats()] == ["Rivers"]


def test_no_copy_of_nothing_and_none_without_room(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(path):
        assert backups.back_up(path) is None
    filled(path).close()
    (path.parent / "backups").mkdir()
    (path.parent / "backups" / ".chats-1.db.part").touch()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    assert backups.back_up(path) is None and not list((path.parent / "backups").iterdir())
    monkeypatch.undo()
    monkeypatch.setattr(schema.os, "replace", full)
    assert backups.back_up(path) is None and not list((path.parent / "backups").iterdir())
