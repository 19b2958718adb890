"""Reports of finished replies, for the history of drafters."""

from __future__ import annotations

from pathlib import Path

from store_support import filled, report, says

from outrider.app.store.records import Answer, Settings


def test_every_finished_reply_counts_once(tmp_path: Path) -> None:
    with filled(tmp_path / "chats.db") as store:
        assert [(one.created, one.outrider, one.tokens) for one in store.finished()] == [(1000.0, "", 3)]
        store.branch("C1", "a2")  # with a copy of the reply
        assert len(store.finished()) == 1
        kept = Answer(kinds="P1A4", report=report("", ""), settings=Settings(outrider="0.2.0"))
        store.put_node("C1", says("a3", "The Rhine.", "q", "assistant", answer=kept, model="m"))
        store._db.execute("UPDATE node SET created = 2000 WHERE id = 'a3'")
        found = store.finished()
        assert [(one.outrider, one.tokens) for one in found] == [("", 3), ("0.2.0", 5)]
        assert found[1].report.drafters == {"suffix": 2} and found[1].report.speedup is None
        store.delete_chat("C1")
        assert len(store.finished()) == 1  # the branch has it still
