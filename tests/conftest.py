"""Settings of the whole test run."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import own_home
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # toys are too small for a second thread, and the machine may be busy
os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run where there is no GPU

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False  # compiling all tests anew takes 9 s of each process of each run

# A script's background job ignores the keys of a terminal, and its processes inherit that.
for _name, _default in (("SIGINT", signal.default_int_handler), ("SIGQUIT", signal.SIG_DFL)):
    if hasattr(signal, _name) and signal.getsignal(getattr(signal, _name)) is signal.SIG_IGN:
        signal.signal(getattr(signal, _name), _default)

PLUGINS = Path(sys.prefix) / "test-plugins"  # `make test` installs the third-party plugin there

LATER_OBJECTS = 50_000  # so many that were made while tests ran are worth a collection

collect_ignore = ["fixtures"]  # what others would write; `core/test_conformance.py` runs their test on a toy


def pytest_configure(config: pytest.Config) -> None:
    """A home for the whole run, and the plugin that only tests know; processes of the run inherit both.

    What is compiled is shared by all tests and their processes, wherever they move OUTRIDER_HOME.
    """
    if hasattr(config, "cache"):
        os.environ.setdefault("OUTRIDER_BUILDS", str(config.cache.mkdir("builds")))
    own_home.pytest_configure(config)
    if not hasattr(config, "workerinput"):
        known = [str(PLUGINS), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(known)
    if str(PLUGINS) not in sys.path:
        sys.path.append(str(PLUGINS))


def pytest_xdist_auto_num_workers() -> int:
    """Half a worker more for each core: tests of screens and processes wait for a quarter of their time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + cores // 2


def pytest_collection_finish() -> None:
    """Tests, modules and libraries stay to the end: they are not looked through for rubbish again and again."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 10)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The same for what a file's tests have imported: the product collects rubbish between models, 80 ms a time."""
    if nextitem is not None and nextitem.path != item.path and len(gc.get_objects(2)) > LATER_OBJECTS:
        gc.collect()
        gc.freeze()
