"""Files of every kind: older, newer, locked, read-only, damaged. What must not be written is never touched."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from store_support import chat, filled, path_of, says

from outrider.app.store import opening, schema
from outrider.app.store.chats import Store
from outrider.app.store.problems import Busy, StoreError

COLOUR = "ALTER TABLE chat ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue'; CREATE TABLE tag (name TEXT);"


def bytes_of(path: Path) -> dict[str, bytes]:
    """The files of a store, without what SQLite shares among readers: memory, and a log with nothing in it."""
    files = {one.name: one.read_bytes() for one in path.parent.iterdir() if one.is_file() and "-shm" not in one.name}
    return {name: data for name, data in files.items() if data or "-wal" not in name}


@pytest.fixture
def closed(path: Path) -> Path:
    """A store with one chat that nobody has open."""
    filled(path).close()
    return path


def refused(path: Path, words: str, *, readable: bool) -> StoreError:
    """Open a store that must not be written: it says so in `words`, shows what it can, and stays as it was."""
    before = bytes_of(path)
    with Store.open(path, patience=0.01) as store:
        trouble = store.trouble
        assert trouble is not None and words in trouble.message and trouble.hint
        assert "not saved" in trouble.message
        if readable:
            assert path_of(store)[1:] == ["The Nile."] and len(store.search("river")) == 1
        else:
            for read in (store.chats, store.written, store.finished, lambda: store.search("river")):
                with pytest.raises(StoreError) as told:  # nobody may take it for a store without chats
                    read()
                assert told.value is trouble
        for change in (lambda: store.put_chat(chat("C2")), lambda: store.delete_chat("C1"), store.undo, store.purge):
            with pytest.raises(StoreError) as told:
                change()
            assert told.value is trouble
    assert bytes_of(path) == before
    return trouble


def test_a_new_store_is_made_and_says_what_it_is(closed: Path) -> None:
    header = closed.read_bytes()[:100]
    assert int.from_bytes(header[60:64], "big") == schema.newest()
    assert int.from_bytes(header[68:72], "big") == schema.APPLICATION
    with closing(sqlite3.connect(closed)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    with Store.open(path) as store:
        assert store.trouble is None and store.chats() == []


def test_an_older_store_is_brought_up_to_date_after_a_copy(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = schema.newest()
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, COLOUR))
    with Store.open(closed) as store:
        assert store.trouble is None and path_of(store)[1:] == ["The Nile."]
        assert store._all("SELECT colour FROM chat") == [("blue",)]
    backup = closed.with_name(f"chats.before-{old + 1}.db")
    with closing(sqlite3.connect(backup)) as db:
        assert schema.version_of(db) == old and db.execute("SELECT count(*) FROM node").fetchone() == (3,)
    with Store.open(closed) as store:  # and only once
        assert store.trouble is None
    assert not list(closed.parent.glob("*.part"))


def test_a_failed_migration_leaves_everything_as_it_was(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, COLOUR + "INSERT INTO nowhere VALUES (1);"))
        with Store.open(closed) as store:
            assert store.trouble is not None and "nowhere" in store.trouble.message
            assert path_of(store)[1:] == ["The Nile."]
    with Store.open(closed) as store:
        assert store.trouble is None
        assert "colour" not in [row[1] for row in store._all("PRAGMA table_info(chat)")]


def test_a_store_of_a_newer_outrider_is_only_read(closed: Path) -> None:
    with closing(sqlite3.connect(closed)) as db:
        db.execute(f"PRAGMA user_version = {schema.newest() + 3}")
    trouble = refused(closed, f"newer Outrider (version {schema.newest() + 3}", readable=True)
    assert "Update Outrider" in trouble.hint


def test_a_newer_version_is_also_seen_in_the_log(closed: Path) -> None:
    with Store.open(closed) as store:
        store._db.execute(f"PRAGMA user_version = {schema.newest() + 1}")  # not in the header yet
        with Store.open(closed) as second:
            assert second.trouble is not None and "newer Outrider" in second.trouble.message


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_read_only_store_is_only_read(closed: Path, what: str) -> None:
    place = closed if what == "file" else closed.parent
    mode = place.stat().st_mode
    place.chmod(mode & ~0o222)
    try:
        refused(closed, f"the {what} is read-only", readable=True)
    finally:
        place.chmod(mode)


def test_a_locked_store_is_only_read(closed: Path) -> None:
    with closing(sqlite3.connect(closed, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        trouble = refused(closed, "holds the chats locked", readable=True)
    assert isinstance(trouble, Busy) and "start again" in trouble.hint


def damaged_header(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 50)


def tiny(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0")


def another_program(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as db:
        db.executescript("PRAGMA application_id = 77; CREATE TABLE theirs (x);")


@pytest.mark.parametrize("harm", [damaged_header, tiny, another_program])
def test_what_is_no_store_is_left_alone(closed: Path, harm: Callable[[Path], None]) -> None:
    harm(closed)
    refused(closed, str(closed), readable=False)


def test_of_a_damaged_store_one_reads_what_is_left(closed: Path) -> None:
    data = bytearray(closed.read_bytes())
    with closing(sqlite3.connect(closed)) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'node_parent'").fetchone()
    data[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    closed.write_bytes(data)
    before = bytes_of(closed)
    with Store.open(closed, repairs=False) as store:
        assert store.trouble is not None and "damaged" in store.trouble.message
        assert "chats export" in store.trouble.hint and [row.title for row in store.chats()] == ["Rivers"]
    assert bytes_of(closed) == before


def test_a_folder_in_its_place_and_no_folder_to_be(path: Path) -> None:
    path.mkdir(parents=True)
    with Store.open(path) as store:
        assert store.trouble is not None and "cannot be opened" in store.trouble.message
    file = path.parent / "file"
    file.touch()
    with Store.open(file / "chats.db") as store:
        assert store.trouble is not None


def test_the_hint_names_the_newest_backup(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, COLOUR))
    Store.open(closed).close()
    damaged_header(closed)
    with Store.open(closed) as store:
        assert store.trouble is not None and f"chats.before-{schema.newest()}.db" in store.trouble.hint


def test_damage_found_later_is_told_not_raised_as_sqlite(closed: Path) -> None:
    with Store.open(closed) as store:
        store._db.execute("UPDATE node SET attachments = '['")
        store._db.execute("UPDATE answer SET kinds = 'Z9', ids = x'00'")
        store._db.execute("UPDATE chat SET settings = '{'")
        assert path_of(store) == ["Which river is long?", "The Nile."] and [row.title for row in store.chats()] == [
            "Rivers"
        ]
        assert store.unread == {"q", "a1", "a2"} and store.finished() == []
        store._db.execute("DROP TABLE answer")
        with pytest.raises(StoreError, match="no such table"):
            store.load("C1")


def test_two_programs_write_one_store(closed: Path) -> None:
    with Store.open(closed) as one, Store.open(closed) as two:
        one.put_chat(chat("C2", "Second"))
        two.put_node("C2", says("n1", "From the other one"))
        two.set_head("C2", "n1")
        assert path_of(one, "C2") == ["From the other one"]
        two.hold("C2")
        with pytest.raises(StoreError, match="open in another Outrider"):
            one.delete_chat("C2")
        two.delete_chat("C2")
        one.purge()  # what another program deleted is its own to bring back
        assert two.undo() is not None and path_of(two, "C2") == ["From the other one"]
        two.hold("C1")
        assert one.delete_chat("C2").chat == "C2"


def test_nothing_is_asked_of_a_home_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    assert opening.store_path() == tmp_path / "data" / "chats.db"
