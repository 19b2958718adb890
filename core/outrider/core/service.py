"""The engine process: `python -m outrider.core.service`. Frames on private descriptors, one loop over requests.

The loop has the model. What needs none is answered beside it, while an answer runs: questions about models and drafters
on one thread, in order, and every download on a thread of its own.

Before anything else is imported, descriptors 0 and 1 move to private ones for frames; 0 becomes the null device and 1
becomes stderr, so nothing that prints, in Python or in C, can corrupt a frame.
"""

from __future__ import annotations

import os


def _take_descriptors() -> tuple[int, int]:
    frames_in, frames_out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return frames_in, frames_out


# Threads that spin at a barrier while another program has their core stall every pass: 0.7 s instead of 0.09 s was
# measured on two cores with one of them busy. A shorter spin costs nothing on a quiet machine; a much shorter one does.
# Read by the OpenMP runtimes when torch loads them.
_SHORT_SPIN = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}

_DESCRIPTORS = _take_descriptors() if __name__ == "__main__" else None
if _DESCRIPTORS is not None and "OMP_WAIT_POLICY" not in os.environ:
    for _name, _value in _SHORT_SPIN.items():
        os.environ.setdefault(_name, _value)

import queue  # noqa: E402 - the descriptors come first
import signal  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402
from collections.abc import Callable  # noqa: E402
from importlib.metadata import version  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from outrider.core.base.errors import Cancelled, OutriderError  # noqa: E402
from outrider.core.base.trouble import explain, out_of_memory, release  # noqa: E402

from .base import protocol, terminal  # noqa: E402

_READ = 1 << 16
_SWITCH = (
    0.0005  # seconds after which a thread beside the loop lets the loop go on, which asks for that at every operation
)
_PATIENCE = 2.0  # seconds that threads beside the loop have to stop at the end


class Service:
    """Serves what needs the model in order of arrival, and beside that questions and downloads.

    Cancel and SetDrafter take effect between two passes of the running answer. `_serve` and what it calls belong to the
    loop's thread; `send`, `cancelled` and `_answer` are for all.
    """

    def __init__(self, frames_in: int, frames_out: int) -> None:
        self._in, self._out = frames_in, frames_out
        self._writing = threading.Lock()
        self._inbox: queue.Queue[protocol.Request | int | None] = queue.Queue()
        self._cancelled: set[int] = set()
        self._switches = _Switches()
        self._older: dict[int, int] = {}  # switches that came before each answer that waits or runs
        self._ending = False
        self._beside = _SideThreads(self._answer)
        self._engine: Any = None

    def run(self) -> None:
        """Until `Quit` or until the client is gone."""
        self.send(protocol.Hello(version=protocol.VERSION, outrider=version("outrider"), pid=os.getpid()))
        threading.Thread(target=self._listen, name="frames", daemon=True).start()
        while (request := self._inbox.get()) is not None:
            self._serve(request)
        self._beside.end(_PATIENCE)

    def send(self, event: protocol.Event) -> None:
        """Write one frame. A client that is gone ends the process."""
        data = memoryview(protocol.pack(event))
        with self._writing:
            try:
                while data:
                    data = data[os.write(self._out, data) :]
            except BrokenPipeError:
                terminal.restore()
                os._exit(0)

    @property
    def engine(self) -> Any:
        """The engine; importing it is what loads torch."""
        if self._engine is None:
            from outrider.core.session.engine import Engine

            self._engine = Engine()
        return self._engine

    # ------------------------------------------------------------------ reading

    def _listen(self) -> None:
        unpacker = protocol.Unpacker(protocol.AnyRequest)
        while data := os.read(self._in, _READ):
            try:
                requests = unpacker.feed(data)
            except protocol.ProtocolError:
                traceback.print_exc()
                break
            for request in requests:
                self._sort(request)
        terminal.restore()
        self._hang_up()

    def _sort(self, request: protocol.Request) -> None:
        if isinstance(request, protocol.Cancel):
            self._cancelled.add(request.request)
        elif isinstance(request, protocol.SetDrafter):
            number = self._switches.add(request)
            if not self._older:
                self._inbox.put(number)
        elif isinstance(request, protocol.Quit):
            self._hang_up()
        elif _downloads(request):
            self._beside.download(request)
        elif isinstance(request, _QUESTIONS):
            self._beside.ask(request)
        else:
            if isinstance(request, protocol.Generate):
                self._older[request.id] = self._switches.received
            self._inbox.put(request)

    def _hang_up(self) -> None:
        """No more requests come: cancel what runs and what waits, then end."""
        self._ending = True
        self._inbox.put(None)

    # ------------------------------------------------------------------ serving

    def _serve(self, request: protocol.Request | int) -> None:
        if isinstance(request, int):
            self._acknowledge(request)
            return
        self._acknowledge(self._older.get(request.id, 0))
        if self._answer(request):
            self._recover()
        self._older.pop(request.id, None)
        if not self._older:
            self._acknowledge(self._switches.received)

    def _answer(self, request: protocol.Request) -> bool:
        """Do a job and send its last event. Whether memory ran out: what it held is free only after the return."""
        short = False
        try:
            if self.cancelled(request.id)():
                raise Cancelled
            self.send(_JOBS[type(request)](self, request))
        except OutriderError as error:
            self._fail(request.id, error.message, error.hint, error.usage)
        except BaseException as error:  # noqa: BLE001 - a bug in one job must not take the chat down; it is told with its trace
            short = out_of_memory(error)
            bug = f"The engine hit a bug: {type(error).__name__}: {error}.", "Please report it."
            message, hint = explain(error, _KINDS.get(type(request), "load")) or bug
            self._fail(request.id, message, " ".join(filter(None, (hint, self._room() if short else ""))), False)
        self._cancelled.discard(request.id)
        return short

    def _room(self) -> str:
        """How long the context is, which takes memory too; "" before a model is loaded."""
        model = self._engine.model if self._engine is not None else None
        context = model.loaded.context if model is not None else 0
        return (
            f"The context is {context} tokens now; --context {context // 2} takes half its memory." if context else ""
        )

    def _recover(self) -> None:
        """After memory ran out the model stays; the conversation is read again with the next answer."""
        if self._engine is not None:
            self._engine.forget()
        release()

    def _fail(self, number: int, message: str, hint: str, usage: bool) -> None:
        trace = traceback.format_exc()
        self.send(protocol.Failed(request=number, message=message, hint=hint, usage=usage, trace=trace))

    def _acknowledge(self, until: int) -> None:
        """Switches that no answer took, up to that number: an answer asked for later carries its own choice."""
        while (switch := self._switches.take(until)) is not None:
            if self._engine is not None:
                self._engine.ask_again(switch.drafter)
            self.send(protocol.Result(request=switch.id, data=switch.drafter.name))

    def cancelled(self, number: int) -> Callable[[], bool]:
        """A test whether request `number` was cancelled, or the process is to end."""
        return lambda: self._ending or number in self._cancelled

    def _bytes(self, number: int) -> Callable[[str, int, int, str], None]:
        """Sends how far the download of request `number` is."""
        from outrider.core.library.jobs import event

        return lambda phase, done, total, note: self.send(event(number, phase, done, total, note))

    # ------------------------------------------------------------------ jobs

    def _load(self, request: protocol.Load) -> protocol.Event:
        self.send(protocol.Progress(request=request.id, phase="engine"))
        model = self.engine.load(request.model, request.id, self.send, self.cancelled(request.id))
        return protocol.Result(request=request.id, data=protocol.plain(model.loaded))

    def _generate(self, request: protocol.Generate) -> protocol.Event:
        report = self.engine.generate(request, self.send, _Control(self, request.id))
        return protocol.Done(request=request.id, finish=report.finish, report=report)

    def _models(self, request: protocol.Models) -> protocol.Event:
        from .library import model_rows

        if request.name is None:
            found = model_rows.rows(request.everything, request.choice)
        else:
            found = model_rows.row(request.name, request.choice, request.weights)
        return protocol.Result(request=request.id, data=protocol.plain(found))

    def _pull(self, request: protocol.Pull) -> protocol.Event:
        from .library import model_rows

        row = model_rows.pull(request.name, self._bytes(request.id), self.cancelled(request.id))
        return protocol.Result(request=request.id, data=protocol.plain(row))

    def _remove(self, request: protocol.Remove) -> protocol.Event:
        from .library import library

        return protocol.Result(request=request.id, data=protocol.plain(library.remove(request.name)))

    def _drafters(self, request: protocol.Drafters) -> protocol.Event:
        from outrider.core.formats.checkpoint import describe
        from outrider.core.library.library import resolve

        from .library import discovery, model_rows
        from .policy import history

        def find(name: str) -> Path:
            if not request.fetch:
                return model_rows.located(name)
            return resolve(name, self._bytes(request.id), self.cancelled(request.id))

        path = find(request.model.model)
        weights = str(find(request.weights)) if request.weights else None
        rows = discovery.survey(describe(path), request.model.model, weights)
        history.add_measured(rows, path)
        return protocol.Result(request=request.id, data=protocol.plain(rows))

    def _drafter_test(self, request: protocol.DrafterTest) -> protocol.Event:
        from outrider.core.measure.drafter_test import run

        data = run(self.engine, request, self.send, self.cancelled(request.id))
        return protocol.Result(request=request.id, data=data)

    def _bench(self, request: protocol.Bench) -> protocol.Event:
        from outrider.core.measure.bench import run

        data = run(self.engine, request, self.send, self.cancelled(request.id))
        return protocol.Result(request=request.id, data=data)

    def _verify(self, request: protocol.Verify) -> protocol.Event:
        from outrider.core.measure.verify import run

        data = run(self.engine, request, self.send, self.cancelled(request.id))
        return protocol.Result(request=request.id, data=data)

    def _train(self, request: protocol.Train) -> protocol.Event:
        from outrider.core.train.run import run

        data = run(self.engine, request, self.send, self.cancelled(request.id))
        return protocol.Result(request=request.id, data=data)

    def _train_export(self, request: protocol.TrainExport) -> protocol.Event:
        from outrider.core.train.run import export

        data = export(self.engine, request, self.send, self.cancelled(request.id))
        return protocol.Result(request=request.id, data=data)

    def _doctor(self, request: protocol.Doctor) -> protocol.Event:
        from outrider.core.measure.doctor import findings

        return protocol.Result(request=request.id, data=protocol.plain(findings()))


class _SideThreads:
    """Threads beside the loop. They end with the process: one that hangs in a plugin does not keep it alive."""

    def __init__(self, answer: Callable[[protocol.Request], object]) -> None:
        self._answer = answer
        self._questions: queue.SimpleQueue[protocol.Request | None] = queue.SimpleQueue()
        self._asking: threading.Thread | None = None
        self._downloads: list[threading.Thread] = []

    def ask(self, question: protocol.Request) -> None:
        """Answer a question after those before it."""
        self._questions.put(question)
        if self._asking is None:
            self._asking = self._start("questions", self._run)

    def download(self, request: protocol.Request) -> None:
        """Begin a download now."""
        running = [thread for thread in self._downloads if thread.is_alive()]
        self._downloads = [*running, self._start("download", self._answer, request)]

    def end(self, patience: float) -> None:
        """Wait until all that was asked for is answered, but no longer than `patience` seconds."""
        until = time.monotonic() + patience
        self._questions.put(None)
        for thread in filter(None, (self._asking, *self._downloads)):
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        while (question := self._questions.get()) is not None:
            self._answer(question)

    def _start(self, name: str, work: Callable[..., object], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
        thread.start()
        return thread


class _Switches:
    """Switches of the drafter, numbered from 1 as they arrive; one thread adds, another takes."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[protocol.SetDrafter] = queue.Queue()
        self.received = self._taken = 0

    def add(self, switch: protocol.SetDrafter) -> int:
        """The number of the switch."""
        self._waiting.put(switch)
        self.received += 1
        return self.received

    def take(self, until: int) -> protocol.SetDrafter | None:
        """The oldest one, if its number is at most `until`."""
        if self._taken >= until:
            return None
        self._taken += 1
        return self._waiting.get()


class _Control:
    """The running answer's view of the user."""

    def __init__(self, service: Service, number: int) -> None:
        self._service, self.cancelled = service, service.cancelled(number)
        self._switch: protocol.SetDrafter | None = None

    def switched(self) -> protocol.DrafterChoice | None:
        """The newest switch; older ones that nobody saw are answered as done."""
        switches = self._service._switches
        while (switch := switches.take(switches.received)) is not None:
            if self._switch is not None:
                self.switch_done(self._switch.drafter.name, None)
            self._switch = switch
        return self._switch.drafter if self._switch is not None else None

    def switch_done(self, name: str, error: OutriderError | None) -> None:
        """Answer the switch."""
        switch, self._switch = self._switch, None
        if switch is None:
            return
        if error is None:
            self._service.send(protocol.Result(request=switch.id, data=name))
        else:
            self._service.send(protocol.Failed(request=switch.id, message=error.message, hint=error.hint))


_JOBS: dict[type, Callable[[Service, Any], protocol.Event]] = {
    protocol.Load: Service._load,
    protocol.Generate: Service._generate,
    protocol.Models: Service._models,
    protocol.Pull: Service._pull,
    protocol.Remove: Service._remove,
    protocol.Drafters: Service._drafters,
    protocol.DrafterTest: Service._drafter_test,
    protocol.Bench: Service._bench,
    protocol.Verify: Service._verify,
    protocol.Train: Service._train,
    protocol.TrainExport: Service._train_export,
    protocol.Doctor: Service._doctor,
}


# Answered beside the loop: they need no model. A plan for one needs a device and a data type, which torch chooses.
_QUESTIONS = (protocol.Models, protocol.Remove, protocol.Drafters)


def _downloads(request: protocol.Request) -> bool:
    return isinstance(request, protocol.Pull) or (isinstance(request, protocol.Drafters) and request.fetch)


# What each job is to `trouble.explain`; the others only load.
_KINDS: dict[type, str] = {
    protocol.Generate: "generate",
    protocol.DrafterTest: "bench",
    protocol.Bench: "bench",
    protocol.Verify: "bench",
    protocol.Train: "train",
    protocol.TrainExport: "train",
}


def main(frames_in: int, frames_out: int) -> None:
    """Serve until the client is gone; an interrupt from the terminal is the client's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(_SWITCH)
    Service(frames_in, frames_out).run()


if _DESCRIPTORS is not None:
    main(*_DESCRIPTORS)
