"""Chats as trees: branches, deleting and bringing back, and what is left of a program that died."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_support import chat, filled, path_of, report, says, step, whole_of

from outrider.app.chat.talk import End
from outrider.app.store.chats import Store
from outrider.app.store.problems import StoreError
from outrider.app.store.records import Settings, short, title_of
from outrider.app.store.replies import Growing, chat_of


def test_everything_of_a_chat_comes_back(path: Path) -> None:
    with filled(path):
        pass
    with Store.open(path) as store:
        whole = store.load("C1")
        talk = chat_of(whole)
    assert whole.chat.system == talk.system == "Be kind." and whole.chat.settings.think is True
    (turn,) = talk.turns
    assert turn.node == "q" and turn.reply is not None and turn.reply.node == "a2"
    assert turn.reply.answer.runs.encode() == "P4A4P1" and turn.reply.text == "The Nile."
    kept = turn.reply.report
    assert kept is not None and kept.token_ids == [1, 2, 70000] and kept.kinds == "PAA" and kept.text == "The Nile."
    assert talk.last_node() == "a2" and talk.last_node(before=turn) is None


def test_branches_stand_side_by_side(path: Path) -> None:
    with filled(path) as store:
        assert store.branches("a1") == store.branches("a2") == ["a1", "a2"] and store.branches("q") == ["q"]
        store.put_node("C1", says("q2", "Why?", "a1"))
        store.put_node("C1", says("a3", "Rain.", "q2", "assistant"))
        assert path_of(store) == ["Which river is long?", "The Nile."]
        assert store.choose("a1") == "a3"
        assert path_of(store) == ["Which river is long?", "The Amazon.", "Why?", "Rain."]
        store.put_node("C1", says("r", "Another beginning"))
        assert store.branches("q") == ["q", "r"]
        store.choose("r")
        assert path_of(store) == ["Another beginning"] and len(store.load("C1").nodes) == 6


def test_deleting_a_branch_shows_another_and_undo_brings_it_back(path: Path) -> None:
    with filled(path) as store:
        store.delete_node("a2")
        assert path_of(store) == ["Which river is long?", "The Amazon."] and store.branches("a1") == ["a1"]
        store.delete_node("a1")
        assert path_of(store) == ["Which river is long?"]
        back = store.undo()
        assert back is not None and back.node == "a1" and path_of(store)[1:] == ["The Amazon."]
        back = store.undo()
        assert back is not None and back.node == "a2" and path_of(store)[1:] == ["The Nile."]
        assert store.undo() is None


def test_a_new_chat_begins_with_a_part_of_another(path: Path) -> None:
    with filled(path) as store:
        store.put_node("C1", says("q2", "Why?", "a1"))
        before = store.load("C1")
        made = store.branch("C1", "a1")
        whole = store.load(made)
        assert [node.text for node in whole.path()] == ["Which river is long?", "The Amazon."] and len(whole.nodes) == 2
        assert whole.chat.settings == before.chat.settings and whole.chat.system == before.chat.system
        assert whole.chat.title == f"{before.chat.title} · branch"
        assert not {node.id for node in whole.nodes} & {node.id for node in before.nodes}
        assert store.load("C1") == before and {hit.chat for hit in store.search("amazon")} == {"C1", made}
        store.delete_chat("C1")
        assert len(store.load(made).nodes) == 2


def test_a_reply_that_goes_on_is_found_by_its_new_words(path: Path) -> None:
    with filled(path) as store:
        store.index()
        (node,) = (node for node in store.load("C1").nodes if node.id == "a1")
        node.text = "The Amazon, some say."
        store.put_node("C1", node)
        assert not store.search("say")  # what is in the index does not change behind its back
        store.reopen("a1")
        store.put_node("C1", node)
        store.index()
        assert [hit.node for hit in store.search("say")] == ["a1"] == [hit.node for hit in store.search("amazon")]


def test_deleting_what_is_not_shown_changes_nothing_that_is(path: Path) -> None:
    with filled(path) as store:
        store.delete_node("a1")
        assert path_of(store)[1:] == ["The Nile."]


def test_deleted_chats_come_back_until_the_next_start(path: Path) -> None:
    with filled(path) as store:
        assert store.delete_chat("C1").title == "Rivers"
        assert store.chats() == [] and store.search("river") == [] and store.prompts(9) == []
        with pytest.raises(StoreError, match="There is no chat"):
            store.load("C1")
        store.purge()  # this program still runs
        assert store.undo() is not None and path_of(store)[1:] == ["The Nile."]
        store.delete_chat("C1")
    with Store.open(path) as store:
        assert store.undo() is not None
        store.delete_chat("C1")
    with Store.open(path) as store:
        store.purge()
        assert store.undo() is None and store._all("SELECT * FROM node") == store._all("SELECT * FROM answer") == []
        assert store._all("SELECT count(*) FROM found WHERE found MATCH 'nile'") == [(0,)]


def test_deleted_messages_go_for_good_with_all_below(path: Path) -> None:
    with filled(path) as store:
        store.put_node("C1", says("q2", "Why the Nile?", "a2"))
        store.index()
        store.delete_node("a2")
    with Store.open(path) as store:
        store.purge()
        assert [node.id for node in store.load("C1").nodes] == ["q", "a1"] and store.search("nile") == []


def test_what_a_dead_program_was_writing_is_interrupted(path: Path) -> None:
    store = filled(path)
    growing = Growing(says("a4", "", "q", "assistant", state="partial"), Settings())
    growing.take(step(0, [("Half", "P"), (" a river", "A")]))
    store.put_node("C1", growing.row())
    store.set_head("C1", "a4")
    with Store.open(path) as other:  # a second program leaves it alone
        assert other.load("C1").path()[-1].state == "partial" and other.search("half") == []
    store.close()
    with Store.open(path) as other:
        last = chat_of(other.load("C1")).turns[-1].reply
        assert last is not None and last.end is End.INTERRUPTED and last.text == "Half a river"
        assert last.answer.runs.encode() == "P4A8" and last.drafters == ["suffix"] and last.report is None
        assert [hit.node for hit in other.search("half")] == ["a4"]


def test_thoughts_keep_marks_and_figures(path: Path) -> None:
    with filled(path) as store:
        growing = Growing(says("a5", "", "q", "assistant", state="partial"), Settings())
        growing.take(step(0, [("Let me", "P")], thinking=True))
        growing.take(step(20, [(" see.", "A")], thinking=True))
        growing.take(step(30, [("Yes", "P"), (".", "A")]))
        growing.reply.finish("stop", report("Yes.", "PAPA", thinking="Let me see."))
        store.put_node("C1", growing.row())
        store.choose("a5")
        reply = chat_of(store.load("C1")).turns[-1].reply
        kept = store.load("C1").path()[-1].answer
    assert reply is not None and reply.report is not None and reply.report.kinds == "PAPA"
    assert (reply.thought.text, reply.thought.runs.encode()) == ("Let me see.", "P6A5")
    assert (reply.thought.tokens, reply.thought.seconds, reply.thought.accepted) == (2, 2.0, 1)
    assert reply.end is End.WHOLE and reply.report.thinking == "Let me see." and reply.report.text == "Yes."
    assert kept is not None and [(one.thought, one.answer) for one in kept.passes] == [(6, 0), (5, 0), (0, 4)]
    assert kept.report is not None and kept.report.text == "" and kept.report.token_ids == []


def test_names_are_resolved_by_their_end(path: Path) -> None:
    first, second = "01M8NPQT75RJ1Z89YSME158Z10", "01M8NPQT75RJ1Z89YSME158A10"
    with Store.open(path) as store:
        with pytest.raises(StoreError, match="no chat yet"):
            store.resolve("last")
        store.put_chat(chat(first))
        store.put_chat(chat(second))
        assert store.resolve("z10") == store.resolve(short(first)) == store.resolve(first.lower()) == first
        with pytest.raises(StoreError, match="2 chats end with 10"):
            store.resolve("10")
        for word in ("nothing", "", "%"):
            with pytest.raises(StoreError, match="There is no chat"):
                store.resolve(word)
        store.put_node(first, says("x", "hi"))
        assert store.resolve("last") == first and [row.messages for row in store.chats()] == [1, 0]


def test_titles_are_the_first_words() -> None:
    assert title_of("  How do\n\nrivers  form? ") == "How do rivers form?"
    long = title_of("word, " * 40)
    assert len(long) <= 61 and long.endswith("word…")
    assert len(title_of("x" * 500)) == 61 and title_of(" \n ") == "Empty message"


def test_a_chat_is_inserted_once(path: Path) -> None:
    with Store.open(path) as store:
        assert store.insert(whole_of("Hello", "Hi there")) and not store.insert(whole_of("Hello", "Hi there"))
        assert path_of(store, "0" * 26) == ["Hello", "Hi there"] and len(store.search("hello")) == 1
        assert store.chats()[0].updated == 1000.0


def test_halves_of_characters_are_no_reason_to_fail(path: Path) -> None:
    with filled(path) as store:
        store.put_node("C1", says("odd", "half \ud800 and \0 zero", "a2"))
        store.choose("odd")
        assert path_of(store)[-1] == "half ? and \0 zero"


def test_a_new_title_stays(path: Path) -> None:
    with filled(path) as store:
        store.rename("C1", "Long rivers")
        store.put_chat(chat("C1", "Rivers", head="a2"))
        assert store.chats()[0].title == "Long rivers"
