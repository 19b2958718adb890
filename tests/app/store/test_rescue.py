"""What the store did not take until the end lies in a file beside it, and an import brings it in."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from store_support import chat, filled, path_of, says, step

from outrider.app.store import keeper as module
from outrider.app.store.chats import Store
from outrider.app.store.imports import read_chats
from outrider.app.store.problems import Busy, StoreError
from outrider.app.store.records import Settings, Whole


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another program writes."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield


def said(path: Path, name: str, *, parent: str | None, keeps: bool = True) -> str:
    """Someone says something in the chat `name` and quits in the middle of the reply; returns the last words."""
    told: list[StoreError] = []
    store = Store.open(path, patience=0.01)
    desk = module._Desk(store, told.append, keeps=keeps)
    row = chat(name, head="reply")
    desk.take(lambda store: store.put_chat(row))
    desk.take(lambda store: store.put_node(name, says("question", "And then?", parent)))
    desk.write()
    desk.take(module._Begin(name, says("reply", "", "question", "assistant", state="partial"), Settings()))
    desk.take(module._Took("reply", step(0, [("Then ", "P"), ("it rained", "A")])))
    return desk.close()


def kept(words: str) -> Whole:
    """The chat in the file that the words name."""
    file = Path(words.removeprefix("What could not be saved lies in ").partition(": ")[0])
    ((whole,), left) = read_chats(file.read_bytes())
    assert not left
    return whole


def test_a_new_chat_that_a_locked_store_does_not_take(path: Path) -> None:
    filled(path).close()
    told: list[StoreError] = []
    desk = module._Desk(Store.open(path, patience=0.01), told.append)
    with locked(path):
        desk.take(lambda store: store.put_chat(chat("N" * 26, head="new")))
        desk.take(lambda store: store.put_node("N" * 26, says("new", "Not lost")))
        desk.write()
        desk.write()
        words = desk.close()
    assert len(told) == 1 and isinstance(told[0], Busy)
    whole = kept(words)
    assert (
        "outrider chats import" in words and whole.chat.id == "N" * 26 and [n.text for n in whole.nodes] == ["Not lost"]
    )


@pytest.mark.parametrize("trouble", ["locked", "read-only", "damaged"])
def test_more_of_a_chat_that_is_there(path: Path, trouble: str) -> None:
    filled(path).close()
    parent = "a"
    with Store.open(path) as store:
        parent = store.load("C1").chat.head
        before = path_of(store)
    if trouble == "damaged":
        path.write_bytes(b"not a database at all" * 50)
    elif trouble == "read-only":
        path.chmod(0o444)
    with locked(path) if trouble == "locked" else closing(sqlite3.connect(":memory:")):
        words = said(path, "C1", parent=parent)
    path.chmod(0o644)
    whole = kept(words)
    texts = [node.text for node in whole.path()]
    assert texts == ([] if trouble == "damaged" else before) + ["And then?", "Then it rained"]
    if trouble == "damaged":
        return
    with Store.open(path) as store:
        assert path_of(store) == before
        assert store.insert(whole) and path_of(store, whole.chat.id) == texts
        assert len(store.chats()) == 2 and store.load(whole.chat.id).path()[-1].state == "interrupted"


def test_nothing_of_a_private_chat_and_no_file_for_nothing(path: Path) -> None:
    filled(path).close()
    path.chmod(0o444)
    assert said(path, "C1", parent=None, keeps=False) == ""
    desk = module._Desk(Store.open(path), lambda trouble: None)
    desk.take(lambda store: store.set_head("C1", None))
    assert desk.close() == ""
    path.chmod(0o644)
    assert not list(path.parent.glob("*.json"))


def test_what_was_saved_in_the_end_leaves_no_file(path: Path) -> None:
    filled(path).close()
    assert said(path, "C2", parent=None) == ""
    with Store.open(path) as store:
        assert path_of(store, "C2") == ["And then?", "Then it rained"]
    assert not list(path.parent.glob("*.json"))
