"""C sources made into a library by the machine's own compiler, once: it stays in the cache folder and is loaded from there.

Nothing of torch is compiled in: addresses go over as numbers. Threads are those of the OpenMP runtime that torch has loaded,
by its one entry for all compilers; a second runtime beside it would fight for the cores.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from outrider.core.base import paths

UNUSED = 30 * 86400.0  # seconds after which a library that nobody loads is removed
TIMEOUT = 60.0  # seconds that a compiler may take
_FLAGS = ("-O3", "-std=gnu11", "-shared", "-fPIC", "-fno-math-errno", "-ffp-contract=fast")
_TUNED = ("-march=native", "-mcpu=native", "")  # the first that the compiler takes
_COMPILERS = ("cc", "gcc", "clang")
_RUNTIMES = ("libgomp", "libiomp5", "libomp")


class UnbuiltError(Exception):
    """There is no library; says why, and what a person may do."""


class _BusyError(UnbuiltError):
    pass


def library(name: str, sources: Sequence[Path]) -> tuple[ctypes.CDLL, str]:
    """The library of some C files (and headers), from the cache or built now; the compiler's name. Raises UnbuiltError."""
    command, version = compiler()
    folder = paths.build_dir()
    stem = f"{name}-{_key(command, version, sources)}"
    try:
        known = _kept(folder, stem)
        if known is not None:
            return known, version
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / "library.so"
            _build(command, sources, made)
            # a whole file under a name that tells its content, or none, however many processes build at once
            kept = folder / f"{stem}-{_digest(made)}.so"
            os.replace(made, kept)
        prune(folder, name)
        return ctypes.CDLL(str(kept)), version
    except OSError as error:
        raise UnbuiltError(f"{folder} cannot be used: {error}; make it writable, or set OUTRIDER_HOME") from error


def native() -> tuple[ctypes.CDLL, str]:
    """The library of everything that Outrider has in C; raises as `library` does."""
    return library("native", sorted((Path(__file__).parent / "c").glob("native*.[ch]")))


def begin(library: ctypes.CDLL, parallel: int) -> bool:
    """Get that library ready; whether it multiplies plain bf16.

    Long work is spread over threads by the GOMP_parallel at an address; 0: that stays as it is.
    """
    library.use_threads.argtypes = (ctypes.c_void_p,)
    if parallel:
        library.use_threads(parallel)
    return bool(library.use_tiles())


def compiler() -> tuple[list[str], str]:
    """The command of a C compiler, and the first line of what it says of itself. Raises UnbuiltError."""
    if os.name != "posix":
        raise UnbuiltError("C is not compiled on this system")
    asked = shlex.split(os.environ.get("CC", ""))
    found = [path for path in map(shutil.which, asked[:1] or _COMPILERS) if path]
    if not found:
        missing = f"CC names {asked[0]}, which is not there" if asked else "no C compiler found"
        raise UnbuiltError(f"{missing}; install gcc or clang")
    command = [found[0], *asked[1:]]
    return command, _output([*command, "--version"]).partition("\n")[0]


def parallel() -> int:
    """Address of GOMP_parallel in the OpenMP runtime that torch uses; 0 where there is none that is known."""
    own = str(Path(torch.__file__).parent.parent)
    for path in sorted(runtimes(), key=lambda path: not path.startswith(own)):
        entry = getattr(ctypes.CDLL(path), "GOMP_parallel", None)
        return (ctypes.cast(entry, ctypes.c_void_p).value or 0) if entry else 0
    return 0


def runtimes() -> set[str]:
    """Paths of the OpenMP runtimes that this process has loaded, where the system tells."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return set()
    lines = [line.split(maxsplit=5) for line in maps.read_text().splitlines()]
    return {line[5] for line in lines if len(line) == 6 and Path(line[5]).name.startswith(_RUNTIMES)}


def _key(command: Sequence[str], version: str, sources: Sequence[Path]) -> str:
    parts = [*command, version, *_FLAGS, *_TUNED, platform.machine(), _processor()]
    parts += [path.read_text("utf-8") for path in sources]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@cache
def _processor() -> str:
    """What the processor can do, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    return next((line for line in info.read_text().splitlines() if line.startswith(("flags", "Features"))), "")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _kept(folder: Path, stem: str) -> ctypes.CDLL | None:
    """A library that was built before; what is not whole any more is removed."""
    for path in sorted(folder.glob(f"{stem}-*.so")):
        if path.stem.rpartition("-")[2] == _digest(path):
            with contextlib.suppress(OSError):  # a folder that can only be read
                os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))  # what `prune` goes by
            return ctypes.CDLL(str(path))
        path.unlink(missing_ok=True)
    return None


def prune(folder: Path, name: str) -> None:
    """Remove libraries that nobody has loaded for a month: those of earlier versions, compilers and processors."""
    for path in folder.glob(f"{name}-*.so"):
        with contextlib.suppress(OSError):  # another process was first, or the folder is not ours
            if path.stat().st_atime < time.time() - UNUSED:
                path.unlink()


def _build(command: Sequence[str], sources: Sequence[Path], made: Path) -> None:
    files = [str(path) for path in sources if path.suffix == ".c"]
    for tuned in _TUNED:
        try:
            _output([*command, *_FLAGS, *filter(None, (tuned,)), *files, "-o", str(made), "-lm"])
            return
        except _BusyError:
            raise
        except UnbuiltError:
            if tuned == _TUNED[-1]:
                raise


def _output(command: Sequence[str]) -> str:
    """What a command prints. Raises UnbuiltError where it fails or takes too long; nothing of it is left running."""
    name = Path(command[0]).name
    with tempfile.TemporaryFile() as output:
        try:
            run = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            raise UnbuiltError(f"{name} cannot be run: {error}") from error
        try:
            code = run.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            raise _BusyError(f"{name} was still busy after {TIMEOUT:.0f} seconds") from None
        output.seek(0)
        text = output.read().decode(errors="replace").strip()
    if code:
        raise UnbuiltError(f"{name} failed: {text.partition(chr(10))[0] or f'exit status {code}'}")
    return text
