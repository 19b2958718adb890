"""A damaged page costs what is on it and no more, and the user is told what that was."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from store_support import chat, report, says

from outrider.app.store import salvage
from outrider.app.store.chats import Store
from outrider.app.store.placing import LOST, Loss
from outrider.app.store.problems import Damaged, StoreError
from outrider.app.store.records import Answer, Node
from outrider.app.store.writers import Writers, writers_of

PAGE = 4096
CHATS = 60


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a store of several pages for each table."""
    path = tmp_path_factory.mktemp("whole") / "chats.db"
    with Store.open(path) as store:
        with store.changing():
            for number in range(CHATS):
                put(store, number)
        store.index()
    return path.read_bytes()


def put(store: Store, number: int) -> None:
    """A chat of four messages."""
    name, head = f"C{number:025}", None
    store.put_chat(chat(name, f"Chat {number}", system="Be kind. " * 20))
    for place in range(4):
        node = says(f"N{number:020}{place:05}", f"{number} {place} " + "river " * (20 + number), head)
        if place % 2:
            node.role, node.answer = "assistant", Answer(marks="P4A4", ids=list(range(90)), report=report("", ""))
        store.put_node(name, node)
        head = node.id
    store.set_head(name, head)


@pytest.fixture
def stored(path: Path, whole: bytes) -> Path:
    """That file, where a store may be."""
    path.parent.mkdir(mode=0o700)
    path.write_bytes(whole)
    return path


def pages_of(path: Path, name: str, kind: str | None = None) -> list[int]:
    """The pages of a table or an index; by SQLite's own table of them, if it has that, else only the root."""
    with closing(sqlite3.connect(path)) as db:
        try:
            found = db.execute("SELECT pageno, pagetype FROM dbstat WHERE name = ? ORDER BY path", (name,)).fetchall()
            return [page for page, what in found if kind in (None, what)]
        except sqlite3.OperationalError:
            pytest.skip("this SQLite has no dbstat")


def spoil(path: Path, page: int) -> None:
    """Noise in place of a page."""
    with path.open("r+b") as file:
        file.seek((page - 1) * PAGE)
        file.write(random.Random(page).randbytes(PAGE))


def texts(store: Store) -> dict[str, list[str]]:
    """The messages on the shown branch of each chat."""
    return {row.id: [node.text for node in store.load(row.id).path()] for row in store.chats()}


def test_a_lost_page_of_messages_costs_these_messages(stored: Path) -> None:
    with Store.open(stored) as store:
        before = texts(store)
    page = pages_of(stored, "node", "leaf")[3]
    spoil(stored, page)
    data = stored.read_bytes()
    with Store.open(stored) as store:
        assert store.trouble is None
        after = texts(store)
        told = store.repaired
        store.put_chat(chat("C2"))  # it can be written again
    lost = sum(text == LOST for shown in after.values() for text in shown)
    assert 0 < lost < 20 and f"Lost: {lost} message" in told and "Everything else is there" in told
    assert after.keys() == before.keys()
    for name, shown in after.items():
        assert len(shown) == 4 and all(text in (LOST, old) for text, old in zip(shown, before[name], strict=True))
    (kept,) = stored.parent.glob("chats.damaged-*.db")
    assert str(kept) in told and kept.read_bytes() == data and kept.stat().st_mode & 0o777 == 0o600
    with Store.open(stored) as store:  # and only once
        assert not store.repaired and store.trouble is None
    assert not list(stored.parent.glob(".*"))


def test_who_wrote_lost_messages_is_told_by_their_place(stored: Path) -> None:
    """Of a chat whose messages and answers are lost on all pages too."""
    for table in ("node", "answer"):
        for page in pages_of(stored, table, "leaf")[:6]:
            spoil(stored, page)
    with Store.open(stored) as store:
        chats = [store.load(row.id).path() for row in store.chats()]
    assert sum(all(node.text == LOST for node in nodes) for nodes in chats) > 5
    assert all([node.role for node in nodes] == ["user", "assistant"] * 2 for nodes in chats)


@pytest.mark.parametrize("what", ["the header", "node", "chat", "node_chat", "sqlite_autoindex_node_1", "found_data"])
def test_a_page_without_rows_costs_nothing(stored: Path, what: str) -> None:
    with Store.open(stored) as store:
        before = texts(store)
    spoil(stored, 1 if what == "the header" else pages_of(stored, what)[0])  # the root, with more pages below it
    with Store.open(stored) as store:
        assert texts(store) == before and "No message was lost." in store.repaired
        assert len(store.search("river", 500)) == CHATS * 4
        assert all(
            node.answer for row in store.chats() for node in store.load(row.id).nodes if node.role == "assistant"
        )


def test_a_lost_page_of_chats_costs_titles_and_settings(stored: Path) -> None:
    spoil(stored, pages_of(stored, "chat", "leaf")[1])
    with Store.open(stored) as store:
        rows = store.chats()
        assert len(rows) == CHATS and all(len(shown) == 4 for shown in texts(store).values())
        lost = [row for row in rows if not row.title.startswith("Chat ")]
        assert lost and all("river" in row.title for row in lost)
        assert f"the title and settings of {len(lost)} chats" in store.repaired and "message" not in store.repaired


def test_a_lost_page_of_answers_costs_marks_and_figures(stored: Path) -> None:
    spoil(stored, pages_of(stored, "answer", "leaf")[1])
    with Store.open(stored) as store:
        bare = [
            node
            for row in store.chats()
            for node in store.load(row.id).nodes
            if node.role == "assistant" and not node.answer
        ]
        assert bare and all("river" in node.text for node in bare)
        assert f"the marks and figures of {len(bare)} repl" in store.repaired


def test_a_file_cut_short_is_read_as_far_as_it_goes(stored: Path) -> None:
    half = stored.stat().st_size // 2 + 100
    with stored.open("r+b") as file:
        file.truncate(half)
    with Store.open(stored) as store:
        assert store.trouble is None and 0 < len(store.chats()) <= CHATS
        assert "Lost: at least" in store.repaired or "No message" not in store.repaired


def test_bytes_within_a_row_cost_that_row(stored: Path) -> None:
    with stored.open("r+b") as file:
        data = file.read()
        at = data.index(b"N" + b"0" * 18 + b"07" + b"0" * 5)
        file.seek(at - 12)  # the lengths of its columns
        file.write(b"\xff" * 10)
    with Store.open(stored) as store:
        found = texts(store)
    assert sum(LOST in shown for shown in found.values()) <= 1 and len(found) == CHATS
    assert sum(len(shown) for shown in found.values()) >= CHATS * 4 - 4


@pytest.mark.parametrize("header", [False, True])
def test_what_was_deleted_does_not_come_back(stored: Path, header: bool) -> None:
    with closing(sqlite3.connect(stored)) as db:
        db.execute("PRAGMA secure_delete = OFF")  # then the pages still have it
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("DELETE FROM chat WHERE id < 'C0000000000000000000000030'")
        db.execute("DELETE FROM answer WHERE node NOT IN (SELECT id FROM node)")
        db.commit()
        assert db.execute("PRAGMA freelist_count").fetchone()[0] > 5
    spoil(stored, 1 if header else pages_of(stored, "node_parent")[0])
    with Store.open(stored) as store:
        assert store.repaired and len(store.chats()) == CHATS - 30
        assert sum(len(shown) for shown in texts(store).values()) == 4 * (CHATS - 30)


def test_the_log_of_a_program_that_was_killed_is_read_too(stored: Path, tmp_path: Path) -> None:
    copy = tmp_path / "killed" / "chats.db"
    copy.parent.mkdir()
    with Store.open(stored) as store:
        put(store, 500)
        for end in ("", "-wal"):
            copy.with_name(copy.name + end).write_bytes(stored.with_name(stored.name + end).read_bytes())
    spoil(copy, 1)
    with Store.open(copy) as store:
        assert len(store.chats()) == CHATS + 1 and not store.trouble
        assert (kept := next(copy.parent.glob("chats.damaged-*.db"), None)) is not None
    assert kept.with_name(f"{kept.name}-wal").exists() or "No message was lost." in store.repaired


def test_another_window_is_not_disturbed(stored: Path) -> None:
    spoil(stored, pages_of(stored, "node", "leaf")[3])
    data = stored.read_bytes()
    other = Writers(writers_of(stored))
    try:
        with Store.open(stored, patience=0.01) as store:
            assert isinstance(store.trouble, Damaged) and "then start again" in store.trouble.hint
            assert len(store.chats()) == CHATS and "Lost:" in store.lost and "Lost:" in store.trouble.message
    finally:
        other.leave()
    assert stored.read_bytes() == data and not list(stored.parent.glob("*.damaged-*"))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(path.stat().st_size))


@pytest.mark.parametrize("harm", [empty, garbage])
def test_a_store_that_cannot_be_read_is_not_taken_for_an_empty_one(stored: Path, harm: Callable[[Path], None]) -> None:
    Store.open(stored).close()
    harm(stored)
    data = stored.read_bytes()
    with Store.open(stored) as store:
        assert store.unreadable and isinstance(store.trouble, Damaged)
        with pytest.raises(StoreError, match="Nothing of it can be read"):
            store.resolve("last")
    assert stored.read_bytes() == data


def test_a_damaged_search_index_costs_nothing(stored: Path) -> None:
    with Store.open(stored) as store:
        store._db.execute("UPDATE found_data SET block = x'ffffffffffff' WHERE id > 10")
        assert store.search("river", 500)  # by looking at each message
        store.put_node("C" + "1".zfill(25), Node(id="X", role="user", text="a fresh word", created=1.0))
        store.index()
        assert [hit.node for hit in store.search("fresh")] == ["X"] and len(store.search("river", 500)) == CHATS * 4


def test_a_loss_in_words() -> None:
    assert Loss(messages=1).words() == "Lost: 1 message. Everything else is there."
    every = Loss(2, 3, 1, certain=False).words()
    assert every.startswith(
        "Lost: at least 3 messages, the marks and figures of 1 reply and the title and settings of 2 chats."
    )
    assert Loss(certain=False).words() == "How much was lost is not known."


def test_nothing_is_written_to_read_an_image(stored: Path) -> None:
    before = {one: one.stat().st_mtime_ns for one in stored.parent.iterdir()}
    stored.parent.chmod(0o500)
    try:
        assert salvage.image_of(stored)[100:] == stored.read_bytes()[100:]
    finally:
        stored.parent.chmod(0o700)
    assert {
        one: one.stat().st_mtime_ns
        for one in stored.parent.iterdir()
        if "-shm" not in one.name and "-wal" not in one.name
    } == before
