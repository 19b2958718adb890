"""The one thread that reads and writes the store while a chat runs; the event loop never waits for a disk.

What comes in a hurry, the passes of a reply, is gathered and written once in half a second. Everything else is written at
once, in the order in which it was told.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from outrider.app.store.problems import Busy, Repaired, StoreError
from outrider.app.store.records import Node, Settings
from outrider.app.store.replies import Growing
from outrider.core.base.protocol import Finish, Report, Step

if TYPE_CHECKING:
    from outrider.app.store.chats import Store

PERIOD = 0.5  # seconds between writes of a reply that comes
_RETRY = 1.0  # seconds until what could not be written is tried again
_PATIENCE = 8.0  # seconds that the last write may take when the chat ends
_LATER = "What is said goes into a file of its own when you quit."

T = TypeVar("T")
Work = Callable[["Store"], Any]


@dataclass(frozen=True, slots=True)
class _Ask:
    work: Work
    answer: Future[Any]


@dataclass(frozen=True, slots=True)
class _Begin:
    chat: str
    node: Node
    settings: Settings


@dataclass(frozen=True, slots=True)
class _Took:
    node: str
    step: Step


@dataclass(frozen=True, slots=True)
class _End:
    """`finish` without a report: interrupted."""

    node: str
    finish: Finish = "error"
    report: Report | None = None


class Keeper:
    """Saves a chat. All public methods belong to the event loop."""

    def __init__(self, told: Callable[[StoreError], None], path: Path | None = None, *, private: bool = False) -> None:
        self._told = told
        self._path = path
        self._private = private
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="chats")
        self._running: asyncio.Future[None] | None = None
        self.parting = ""
        """Words for the user once it is closed, if not all could be saved."""

    def start(self) -> None:
        """Open the store and write until `close`. What goes wrong with the store is told, not raised."""
        self._loop, self._context = asyncio.get_running_loop(), copy_context()
        self._running = asyncio.wrap_future(self._thread.submit(self._work))

    async def watch(self) -> None:
        """Wait until it is closed. Raises what is the program's own mistake."""
        if self._running is not None:
            await asyncio.shield(self._running)

    def do(self, work: Work) -> None:
        """Write something, at once but beside everything else."""
        self._queue.put(work)

    async def ask(self, work: Callable[[Store], T]) -> T:
        """Read something, after everything told so far was written. Raises `StoreError`."""
        answer: Future[T] = Future()
        self._queue.put(_Ask(work, answer))
        return await asyncio.wrap_future(answer)

    def begin(self, chat: str, node: Node, settings: Settings) -> None:
        """A reply is awaited."""
        self._queue.put(_Begin(chat, node, settings))

    def take(self, node: str, step: Step) -> None:
        """A pass of a reply has come."""
        self._queue.put(_Took(node, step))

    def finish(self, node: str, finish: Finish, report: Report) -> None:
        """A reply has ended."""
        self._queue.put(_End(node, finish, report))

    def interrupt(self, node: str) -> None:
        """A reply has ended without a report."""
        self._queue.put(_End(node))

    async def close(self) -> None:
        """Write what is left and close the store."""
        self._queue.put(None)
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=_PATIENCE)
        self._thread.shutdown(wait=False)

    # ------------------------------------------------------------------------------------------------ the thread

    def _work(self) -> None:
        desk = _Desk(self._open(), self._tell, keeps=not self._private)
        try:
            while True:
                try:
                    item = self._queue.get(timeout=desk.rest())
                except queue.Empty:
                    desk.write()
                    continue
                if item is None:
                    break
                desk.take(item)
                if desk.late():
                    desk.write()
        finally:
            self.parting = desk.close()

    def _open(self) -> Store:
        from outrider.app.store.backups import back_up, due
        from outrider.app.store.chats import Store  # SQLite is loaded after the first paint
        from outrider.app.store.opening import open_nothing, store_path

        path = self._path or store_path()
        if self._private:
            return Store(open_nothing(path))
        try:
            store = Store.open(path)
        except StoreError as error:
            self._tell(error)
            return Store(open_nothing(path, error))
        if store.trouble is None:
            try:
                store.purge()
            except StoreError as error:
                self._tell(error)
        if store.repaired:
            self._tell(Repaired(store.repaired))
        if store.trouble is None and due(path):
            Thread(target=back_up, args=(path,), name="copy of the chats").start()
        if store.trouble is not None:
            self._tell(type(store.trouble)(store.trouble.message, f"{store.trouble.hint} {_LATER}".strip()))
        return store

    def _tell(self, trouble: StoreError) -> None:
        self._loop.call_soon_threadsafe(self._told, trouble, context=self._context)


class _Desk:
    """What the thread has to write. It keeps everything until it is written."""

    def __init__(self, store: Store, tell: Callable[[StoreError], None], *, keeps: bool = True) -> None:
        self._store, self._tell = store, tell
        self._trouble = store.trouble  # why nothing can be saved any more
        self._keeps = keeps  # then it goes into a file of its own at the end
        self._works: list[Work] = []
        self._growing: dict[str, tuple[str, Growing]] = {}  # by node, with its chat
        self._changed: set[str] = set()
        self._ended: set[str] = set()
        self._due: float | None = None
        self._written = 0.0
        self._complained = False

    def rest(self) -> float | None:
        """Seconds until something must be written, None if there is nothing to write."""
        return None if self._due is None else max(0.0, self._due - monotonic())

    def late(self) -> bool:
        """Whether so much comes that nothing gets written."""
        return self._due is not None and monotonic() - self._due > PERIOD / 2

    def take(self, item: Any) -> None:
        """Put one more thing on the desk."""
        if isinstance(item, _Ask):
            self.write()
            self._answer(item)
        elif self._trouble is not None and not self._keeps:
            return
        elif isinstance(item, _Begin):
            self._growing[item.node.id] = item.chat, Growing(item.node, item.settings)
            self._ended.discard(item.node.id)  # it goes on before its end was written
            self._change(item.node.id, now=True)
        elif isinstance(item, _Took):
            self._growing[item.node][1].take(item.step)
            self._change(item.node, now=False)
        elif isinstance(item, _End):
            reply = self._growing[item.node][1].reply
            if item.report is None:
                reply.interrupt()
            else:
                reply.finish(item.finish, item.report)
            self._ended.add(item.node)
            self._change(item.node, now=True)
        else:
            self._works += [self._as_it_stands(node) for node in self._changed]  # what came before is written before
            self._changed = set()
            self._works.append(item)
            self._write_by(monotonic())

    def _as_it_stands(self, node: str) -> Work:
        chat, growing = self._growing[node]
        row = growing.row()
        return lambda store: store.put_node(chat, row)

    def _change(self, node: str, *, now: bool) -> None:
        self._changed.add(node)
        self._write_by(monotonic() if now else self._written + PERIOD)

    def _write_by(self, moment: float) -> None:
        if self._due is None:
            self._due = moment
        elif not self._complained:  # else it is when to try again
            self._due = min(self._due, moment)

    def write(self) -> None:
        """Write all of it, or keep all of it."""
        if self._trouble is not None or not (self._works or self._changed):
            self._due = None
            return
        try:
            with self._store.changing():
                for work in (*self._works, *map(self._as_it_stands, self._changed)):
                    work(self._store)
            if self._ended:
                self._store.index()
        except StoreError as error:
            self._fail(error)
            return
        for node in self._ended:
            del self._growing[node]
        self._works, self._changed, self._ended = [], set(), set()
        self._written, self._due, self._complained = monotonic(), None, False

    def _fail(self, error: StoreError) -> None:
        self._due = monotonic() + _RETRY
        if not isinstance(error, Busy):
            self._trouble, self._due = error, None
        if not self._complained:
            self._complained = True
            self._tell(error)

    def _answer(self, ask: _Ask) -> None:
        if not ask.answer.set_running_or_notify_cancel():
            return
        try:
            ask.answer.set_result(ask.work(self._store))
        except StoreError as error:
            ask.answer.set_exception(error)

    def close(self) -> str:
        """Write what is left; returns words for the user if it went elsewhere."""
        try:
            self.write()
            return self._rescue() if self._keeps and (self._works or self._changed) else ""
        finally:
            self._store.close()

    def _rescue(self) -> str:
        from outrider.app.store.rescue import rescue

        try:
            file = rescue(self._store.path, [*self._works, *map(self._as_it_stands, self._changed)])
        except StoreError as error:
            return error.message
        return f"What could not be saved lies in {file}: `outrider chats import` brings it in." if file else ""
