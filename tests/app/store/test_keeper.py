"""The thread that saves: in order, within a second, whatever happens to the program or to the file."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from store_support import chat, filled, path_of, report, says, step

from outrider.app.chat.talk import Chat, End, Reply, Turn
from outrider.app.store import keeper as module
from outrider.app.store.chats import Store
from outrider.app.store.diary import Diary
from outrider.app.store.keeper import Keeper
from outrider.app.store.problems import Busy, Repaired, StoreError
from outrider.app.store.records import Settings
from outrider.app.store.replies import chat_of

HERE = Path(__file__).parent


class Kept:
    """A keeper at work, and what it told."""

    def __init__(self, path: Path, **options: bool) -> None:
        self.told: list[StoreError] = []
        self.keeper = Keeper(self.told.append, path, **options)
        self.diary = Diary(self.keeper)

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not true():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def keeping(path: Path, **options: bool) -> AsyncIterator[Kept]:
    kept = Kept(path, **options)
    kept.keeper.start()
    try:
        yield kept
    finally:
        await kept.keeper.close()
        await kept.keeper.watch()


def begun(diary: Diary, text: str, talk: Chat) -> Turn:
    """A message that went out."""
    turn = Turn(text, Reply())
    diary.queued(talk, turn, Settings())
    talk.turns.append(turn)
    diary.sent(talk, turn, Settings())
    return turn


async def test_a_chat_is_there_again(path: Path) -> None:
    talk = Chat("Be kind.")
    async with keeping(path) as kept:
        for number in range(3):
            turn = begun(kept.diary, f"Question {number}\nof three", talk)
            kept.diary.grew(turn, step(0, [("Answer", "P"), (" one", "A")]))
            kept.diary.finished(turn, "stop", report("Answer one", "PA"))
    with Store.open(path) as store:
        (row,) = store.chats()
        again = chat_of(store.load(row.id))
    assert (row.title, row.messages) == ("Question 0 of three", 3) and again.system == "Be kind."
    assert [turn.text for turn in again.turns] == [turn.text for turn in talk.turns]
    assert all(turn.reply is not None and turn.reply.end is End.WHOLE for turn in again.turns)
    assert again.turns[2].node == talk.turns[2].node and not kept.told


def test_passes_are_gathered_and_the_rest_is_written_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PERIOD", 3600.0)
    desk = module._Desk(filled(path), lambda trouble: pytest.fail(str(trouble)))
    assert desk.rest() is None
    desk.take(module._Begin("C1", says("new", "", "q", "assistant", state="partial"), Settings()))
    assert desk.rest() == 0
    desk.write()
    assert desk.rest() is None
    for number in range(200):
        desk.take(module._Took("new", step(number, [("word ", "P")])))
    rest = desk.rest()
    assert rest is not None and 3500 < rest <= 3600 and not desk.late()
    desk.take(lambda store: store.set_head("C1", "new"))
    assert desk.rest() == 0
    desk.write()
    assert path_of(desk._store)[-1] == "word " * 200
    desk.take(module._End("new", "stop", report("word " * 200, "P" * 200)))
    assert desk.rest() == 0
    desk.close()
    with Store.open(path) as store:
        assert store.load("C1").path()[-1].state == "complete"


async def test_a_reply_under_way_is_written_while_it_comes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PERIOD", 0.01)
    async with keeping(path) as kept:
        turn = begun(kept.diary, "Hi", Chat())
        kept.diary.grew(turn, step(0, [("one ", "P")]))
        await kept.keeper.ask(lambda store: None)
        with closing(sqlite3.connect(path)) as db:
            await kept.until(
                lambda: db.execute("SELECT text FROM node WHERE state = 'partial'").fetchall() == [("one ",)]
            )
            kept.diary.grew(turn, step(1, [("two", "A")]))
            await kept.until(
                lambda: db.execute("SELECT text FROM node WHERE state = 'partial'").fetchall() == [("one two",)]
            )
    with Store.open(path) as store:  # the program ended in good order, in the middle of the reply
        assert store.load(store.resolve("last")).path()[-1].state == "interrupted"


async def test_waiting_messages_are_kept_and_taken_back(path: Path) -> None:
    talk = Chat()
    async with keeping(path) as kept:
        gone, stays = Turn("Taken back"), Turn("Waits")
        kept.diary.queued(talk, gone, Settings())
        kept.diary.queued(talk, stays, Settings())
        kept.diary.recalled(talk, gone)
        assert await kept.keeper.ask(lambda store: store.waiting(talk.id)) == []  # its program runs
        alone, lone = Chat(), Turn("Alone")
        kept.diary.queued(alone, lone, Settings())
        kept.diary.recalled(alone, lone)
    with Store.open(path) as store:
        assert store.waiting(talk.id) == [(stays.node, "Waits")] and [row.id for row in store.chats()] == [talk.id]
        assert store.load(talk.id).nodes == [] and store.search("waits") == []
    async with keeping(path) as kept:
        talk.waiting = [stays.node]
        begun(kept.diary, "Waits, changed", talk)
    with Store.open(path) as store:
        assert store.waiting(talk.id) == [] and path_of(store, talk.id) == ["Waits, changed", ""]


async def test_a_refused_message_leaves_the_branch(path: Path) -> None:
    talk = Chat()
    async with keeping(path) as kept:
        good = begun(kept.diary, "Good", talk)
        kept.diary.finished(good, "stop", report("Yes", "P"))
        bad = begun(kept.diary, "Bad", talk)
        bad.failed = True
        kept.diary.interrupted(talk, bad)
        again = begun(kept.diary, "Again", talk)
        kept.diary.finished(again, "stop", report("Sure", "P"))
    with Store.open(path) as store:
        assert path_of(store, talk.id) == ["Good", "Yes", "Again", "Sure"]
        assert len(store.load(talk.id).nodes) == 4 and store.search("bad") == []


async def test_a_lock_is_waited_for_and_nothing_is_lost(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY", 0.01)
    async with keeping(path) as kept:
        await kept.keeper.ask(lambda store: store._db.execute("PRAGMA busy_timeout = 1"))
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            talk = Chat()
            turn = begun(kept.diary, "Hi", talk)
            kept.diary.grew(turn, step(0, [("Hello", "P")]))
            await kept.until(lambda: kept.told)
        assert isinstance(kept.told[0], Busy) and "locked" in kept.told[0].message
        kept.diary.finished(turn, "stop", report("Hello", "P"))
        whole = await kept.keeper.ask(lambda store: store.load(talk.id))
        assert [node.text for node in whole.path()] == ["Hi", "Hello"] and len(kept.told) == 1


async def test_damage_in_the_middle_is_told_once_and_the_chat_goes_on(path: Path) -> None:
    async with keeping(path) as kept:
        await kept.keeper.ask(lambda store: store._db.execute("DROP TABLE node"))
        turn = begun(kept.diary, "Hi", Chat())
        await kept.until(lambda: kept.told)
        kept.diary.grew(turn, step(0, [("Hello", "P")]))
        kept.diary.finished(turn, "stop", report("Hello", "P"))
        with pytest.raises(StoreError):
            await kept.keeper.ask(lambda store: store.chats())
    assert len(kept.told) == 1 and "no such table" in kept.told[0].message


async def test_a_copy_is_told_and_read_but_not_written(path: Path) -> None:
    filled(path).close()
    path.chmod(0o444)
    async with keeping(path) as kept:
        begun(kept.diary, "Hi", Chat())
        assert [row.id for row in await kept.keeper.ask(lambda store: store.chats())] == ["C1"]
        await kept.until(lambda: kept.told)
    assert len(kept.told) == 1 and "read-only" in kept.told[0].message


async def test_a_repaired_store_is_told_and_written(path: Path) -> None:
    filled(path).close()
    path.write_bytes(bytes(100) + path.read_bytes()[100:])
    async with keeping(path) as kept:
        talk = Chat()
        begun(kept.diary, "Hi", talk)
        await kept.until(lambda: kept.told)
        assert [one.title for one in await kept.keeper.ask(lambda store: store.chats())] == ["Hi", "Rivers"]
    assert len(kept.told) == 1 and isinstance(kept.told[0], Repaired) and "chats.damaged-" in kept.told[0].message
    with Store.open(path) as store:
        assert store.trouble is None and path_of(store, talk.id) == ["Hi", ""]


async def test_a_store_that_cannot_be_read_says_so_to_whoever_asks(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a database at all" * 500)
    async with keeping(path) as kept:
        with pytest.raises(StoreError, match="Nothing of it can be read"):
            await kept.keeper.ask(lambda store: store.chats())
        await kept.until(lambda: kept.told)
        begun(kept.diary, "Hi", Chat())
    assert len(kept.told) == 1 and "goes into a file of its own" in kept.told[0].hint
    assert "Hi" in next(path.parent.glob("not-saved*.json")).read_text()


async def test_the_store_is_copied_beside_the_chat_once_a_week(path: Path) -> None:
    filled(path).close()
    for _ in range(2):
        async with keeping(path) as kept:
            await kept.until(lambda: list((path.parent / "backups").glob("chats-*.db")))
    (copy,) = (path.parent / "backups").iterdir()
    with Store.open(copy) as store:
        assert [row.id for row in store.chats()] == ["C1"]


async def test_a_private_chat_leaves_no_trace(path: Path) -> None:
    async with keeping(path, private=True) as kept:
        turn = begun(kept.diary, "Hi", Chat())
        kept.diary.finished(turn, "stop", report("Hello", "P"))
        assert await kept.keeper.ask(lambda store: store.chats()) == []
    assert not kept.told and not path.parent.exists()


async def test_what_was_deleted_goes_at_the_next_start(path: Path) -> None:
    store = filled(path)
    store.put_chat(chat("C2"))
    store.put_node("C2", says("x", "kept"))
    store.delete_chat("C1")
    store.close()
    async with keeping(path) as kept:
        assert await kept.keeper.ask(lambda store: store.undo()) is None
        assert len(await kept.keeper.ask(lambda store: store.chats())) == 1


CHILD = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import sqlite3
from store_support import report, step
from outrider.app.chat.talk import Chat, Reply, Turn
from outrider.app.store import keeper as module
from outrider.app.store.diary import Diary
from outrider.app.store.records import Settings

module.PERIOD = 0.005
path = Path(sys.argv[2])

async def main():
    keeper = module.Keeper(lambda trouble: sys.exit(str(trouble)), path)
    keeper.start()
    diary, talk, turn = Diary(keeper), Chat(), Turn("Count", Reply())
    diary.queued(talk, turn, Settings())
    talk.turns.append(turn)
    diary.sent(talk, turn, Settings())
    for number in range(1_000_000):
        diary.grew(turn, step(number, [(f"{number} ", "PA"[number % 2])]))
        await keeper.ask(lambda store: None)  # all before it is written
        sys.stdout.write(f"{number}\\n")
        sys.stdout.flush()

asyncio.run(main())
"""


@pytest.mark.parametrize("moment", [0, 1, 4, 17])
def test_a_killed_program_loses_nothing_that_was_written(path: Path, moment: int) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(HERE), str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    seen = ""
    while seen != str(moment):
        seen = child.stdout.readline().strip()
    os.kill(child.pid, signal.SIGKILL)
    rest = child.stdout.read().split()
    child.wait()
    child.stdout.close()
    written = int(rest[-1]) if rest else moment
    with Store.open(path) as store:
        assert store.trouble is None
        reply = chat_of(store.load(store.resolve("last"))).turns[0].reply
        node = store.load(store.resolve("last")).path()[-1]
    assert reply is not None and reply.end is End.INTERRUPTED and reply.report is None
    numbers = reply.text.split()
    assert numbers == [str(number) for number in range(len(numbers))] and len(numbers) > written
    assert "".join(run.kind for run in reply.answer.runs)[:6] == "PAPAPA"[: len(numbers)]
    assert node.answer is not None and len(node.answer.ids) == len(node.answer.passes) == len(numbers)
