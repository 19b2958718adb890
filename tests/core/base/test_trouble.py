"""What is no bug of ours is told as what it is, and the engine goes on: memory, disk, permissions, input."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import toys

from outrider.core.base import protocol
from outrider.core.base.protocol import DrafterChoice, Failed, Generate, ModelChoice
from outrider.core.base.trouble import explain, memory_words, out_of_memory
from outrider.core.service import Service
from outrider.core.session.chat_cache import ChatCache

PROMPT = [5, 9, 13, 9, 5, 9, 13]
CUDA = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.6 GiB of which 1.20 GiB is free. …"
)
CPU = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "8589934592 bytes. Error code 12 (Cannot allocate memory)"
)
SHORT = [
    CUDA,
    CPU,
    MemoryError(),
    MemoryError("no memory for a pass of 9 rows"),
    RuntimeError("not enough memory: you tried to allocate 1024 bytes."),
    RuntimeError("std::bad_alloc"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
]


@pytest.mark.parametrize("error", SHORT, ids=repr)
def test_exhausted_memory_is_known_in_all_its_forms(error: Exception) -> None:
    assert out_of_memory(error)
    for job, way in {"load": "--quantize", "generate": "--drafter none", "train": "batch", "bench": "--batch"}.items():
        told = explain(error, job)
        assert told is not None and "exhausted" in told[0] and way in told[1]


def test_numbers_are_told_where_they_are_known() -> None:
    assert memory_words(CUDA) == "2.50 GiB more were needed, 1.20 GiB are free"
    assert explain(CPU) is not None and "The memory is exhausted: 8.0 GiB more were needed." in (explain(CPU) or "")
    assert "The GPU's memory" in (explain(CUDA) or "")[0]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/models/x.gguf"), "disk is full: /models/x.gguf"),
        (PermissionError(errno.EACCES, "Permission denied", "/models/x.gguf"), "/models/x.gguf may not be"),
        (OSError(errno.EROFS, "Read-only file system", "/models/x"), "/models/x may not be"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many files"),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "/models"), "/models could not be used: Is a directory"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), "surrogates not allowed"),
        (RuntimeError("CUDA error: an illegal memory access was encountered\nmore"), "illegal memory access"),
    ],
    ids=repr,
)
def test_what_a_person_can_do_something_about_is_no_bug(error: Exception, words: str) -> None:
    told = explain(error)
    assert told is not None and words in told[0] and told[1] and not out_of_memory(error)


@pytest.mark.parametrize(
    "error", [ValueError("x"), RuntimeError("shape mismatch"), KeyError("k"), OSError("odd")], ids=repr
)
def test_a_bug_stays_one(error: Exception) -> None:
    assert explain(error) is None


# ---------------------------------------------------------------------------------------------------- the service


def served(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> tuple[Failed, list[str]]:
    """What the service sends for an answer that raises, and what it did to the engine."""
    done: list[str] = []

    def generate(*_: Any) -> None:
        raise error

    model = SimpleNamespace(loaded=SimpleNamespace(context=8192))
    service, sent = Service(-1, -1), list[protocol.Event]()
    service._engine = SimpleNamespace(generate=generate, model=model, forget=lambda: done.append("forget"))
    monkeypatch.setattr(service, "send", sent.append)
    service._serve(Generate(7, ModelChoice(), prompt="x", drafter=DrafterChoice()))
    (failed,) = sent
    assert isinstance(failed, Failed) and failed.request == 7 and not service._older
    return failed, done


@pytest.mark.parametrize("error", [CUDA, CPU, MemoryError()], ids=repr)
def test_the_engine_survives_exhausted_memory(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    failed, done = served(error, monkeypatch)
    assert "exhausted" in failed.message and "bug" not in failed.message and "Please report" not in failed.hint
    assert "--context 4096" in failed.hint and done == ["forget"]


def test_a_bug_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    failed, done = served(KeyError("k"), monkeypatch)
    assert "hit a bug: KeyError" in failed.message and failed.hint == "Please report it." and not done


# ---------------------------------------------------------------------------------------------------- in an answer


class Greedy(toys.Anything):
    """Wants more memory than there is, from the second draft on, where `place` says."""

    def __init__(self, place: str, error: Exception) -> None:
        super().__init__()
        self.place, self.error, self.calls = place, error, 0

    def _want(self, place: str) -> None:
        self.calls += place == self.place
        if place == self.place and self.calls > 2:
            raise self.error

    def propose(self, context: Any) -> Any:
        self._want("propose")
        return super().propose(context)

    def advance(self, step: Any) -> None:
        self._want("advance")
        super().advance(step)


@pytest.mark.parametrize("place", ["propose", "advance"])
@pytest.mark.parametrize("error", [CUDA, CPU], ids=["cuda", "cpu"])
def test_a_drafter_without_memory_is_dropped_and_the_answer_goes_on(place: str, error: Exception) -> None:
    want, notes = toys.answer(ChatCache(toys.target()), PROMPT), list[str]()
    rider = toys.guard(Greedy(place, error), notes=notes)
    got = toys.answer(ChatCache(toys.target()), PROMPT, rider)
    assert got.token_ids == want.token_ids and got.finish == "length" and rider.failed
    assert notes == [
        f"The drafter toy ran out of memory in {place}. It is switched off; the answer goes on without it."
    ]


def test_a_target_without_memory_ends_the_answer_and_not_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    want = toys.answer(ChatCache(toys.target()), PROMPT)
    cache = ChatCache(toys.target())
    whole, passes = cache.target.forward, []

    def forward(*args: Any, **options: Any) -> Any:
        passes.append(1)
        if len(passes) == 5:
            raise CPU
        return whole(*args, **options)

    monkeypatch.setattr(cache.target, "forward", forward)
    with pytest.raises(RuntimeError, match="can't allocate"):
        toys.answer(cache, PROMPT)
    cache.reuse([])  # as the service does
    assert toys.answer(cache, PROMPT).token_ids == want.token_ids
