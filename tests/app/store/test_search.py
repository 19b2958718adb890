"""Finding words, with the full-text index and without."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from store_support import chat, filled, says

from outrider.app.store import search
from outrider.app.store.chats import Store

HOSTILE = [
    '"',
    '""',
    "'",
    "a AND",
    "NOT",
    "OR OR",
    "NEAR(a b)",
    "text:river",
    "river*",
    "^river",
    "(",
    "river)",
    "a - b",
    "{x}: y",
    "%",
    "_",
    "\\",
    "'; DROP TABLE node; --",
    "\0",
    "x\0y",
    "🏞",
    "?1",
    '"unclosed phrase',
]


@pytest.fixture(params=["index", "looking"])
def store(path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "looking":
        monkeypatch.setattr(search, "has_index", lambda _: False)
    return filled(path)


def found(store: Store, words: str) -> list[str]:
    return sorted(hit.node for hit in store.search(words))


def test_all_words_must_be_there_and_the_last_may_be_begun(store: Store) -> None:
    assert found(store, "river") == found(store, "RIVER long") == found(store, "which riv") == ["q"]
    assert (
        found(store, "the") == ["a1", "a2"] and found(store, "the nile") == ["a2"] and found(store, "river nile") == []
    )
    assert found(store, '"is long"') == ["q"] and found(store, '"long is"') == [] and found(store, "  ") == []


def test_found_words_are_marked(store: Store) -> None:
    (hit,) = store.search("long river")
    assert [hit.snippet[start:end] for start, end in hit.marked] == ["river", "long"]
    assert (hit.chat, hit.title, hit.role) == ("C1", "Rivers", "user")


def test_no_sign_is_an_operator(store: Store) -> None:
    before = store._all("SELECT id, text FROM node")
    for words in HOSTILE:
        assert all(hit.node in ("q", "a1", "a2") for hit in store.search(words)), words
    assert store._all("SELECT id, text FROM node") == before
    with store.changing():
        for number, words in enumerate(HOSTILE):
            store.put_node("C1", says(f"odd{number}", f"it says {words} here", "a2"))
    store.index()
    for number, words in enumerate(HOSTILE):
        plain = search.words_of(words) and not set(words) & {"\0", '"'}
        assert not plain or f"odd{number}" in found(store, words), words


def test_parts_of_words_are_found_where_there_are_no_spaces(store: Store) -> None:
    store.put_node("C1", says("cjk", "长江是中国最长的河流", "a2"))
    store.index()
    assert found(store, "中国") == ["cjk"]


def test_words_of_a_title_find_its_messages(store: Store) -> None:
    store.rename("C1", "Waterways")
    assert found(store, "waterways") == ["q"]


def test_long_messages_are_cut_around_the_word(store: Store) -> None:
    store.put_node("C1", says("long", "before " * 200 + "needle\x02 " + "after " * 200, "a2"))
    store.index()
    (hit,) = store.search("needle")
    assert len(hit.snippet) < 250 and hit.snippet.startswith("…") and hit.snippet.endswith("…")
    assert "needle" in [hit.snippet[start:end] for start, end in hit.marked]


def test_accents_do_not_matter_to_the_index(path: Path) -> None:
    with filled(path) as store:
        store.put_node("C1", says("fr", "L'été à l'île", "a2"))
        store.index()
        assert found(store, "ete") == found(store, "Île") == ["fr"]


def test_a_build_without_full_text_search_still_works(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Old(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:  # type: ignore[override]
            if "fts5" in sql or " found" in sql:
                raise sqlite3.OperationalError("no such module: fts5")
            return super().execute(sql, *values)

    connect = sqlite3.connect
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", lambda *words, **more: connect(*words, **more, factory=Old))
        with filled(path) as store:
            assert found(store, "nile") == ["a2"]
            store.put_chat(chat("C2"))
            store.put_node("C2", says("late", "Later words"))
            store.delete_node("a1")
    with Store.open(path) as store:  # a newer one makes up for it
        store.purge()
        assert search.has_index(store._db)
        assert store._all("SELECT count(*) FROM found WHERE found MATCH 'later OR nile'") == [(2,)]
