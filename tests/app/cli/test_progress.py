"""The progress line: what it says, how often, and that pipes stay clean."""

from __future__ import annotations

import io

import pytest

from outrider.app import progress, render
from outrider.core.base.protocol import Progress


class Bench:
    """A progress line with a clock that is set by hand."""

    def __init__(self, *, terminal: bool) -> None:
        self.now = 0.0
        self.stream = io.StringIO()
        self.line = progress.ProgressLine(self.stream, terminal=terminal, clock=lambda: self.now)

    def at(self, now: float, phase: str, done: float, total: float, unit: str, note: str = "") -> str:
        """What one event adds to the stream."""
        before = len(self.stream.getvalue())
        self.now = now
        self.line.update(Progress(request=1, phase=phase, done=done, total=total, unit=unit, note=note))
        return self.stream.getvalue()[before:]


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.usefixtures("wide")
def test_a_download_shows_size_bar_speed_and_time_left():
    bench = Bench(terminal=True)
    first = bench.at(0.0, "download", 0, 100e6, "bytes", "PyPI")
    assert first == "\r\x1b[KDownloading from PyPI  " + "░" * 24 + "  0 B of 100 MB"
    later = bench.at(2.0, "download", 50e6, 100e6, "bytes", "PyPI")
    assert later == (
        "\r\x1b[KDownloading from PyPI  " + "█" * 12 + "░" * 12 + "  50.0 MB of 100 MB  25.0 MB/s  2 s left"
    )


def test_long_words_give_way_to_the_figures(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    bench = Bench(terminal=True)
    bench.at(0.0, "download", 0, 100e6, "bytes", "model hub (some/model-with-a-long-name)")
    shown = bench.at(2.0, "download", 50e6, 100e6, "bytes", "model hub (some/model-with-a-long-name)")
    assert shown == ("\r\x1b[KDownloading from mo…  " + "█" * 12 + "░" * 12 + "  50.0 MB of 100 MB  25.0 MB/s  2")
    monkeypatch.setenv("COLUMNS", "100")
    shown = bench.at(4.0, "download", 60e6, 100e6, "bytes", "model hub (some/model-with-a-long-name)")
    assert shown.startswith("\r\x1b[KDownloading from model hub (some…  █") and shown.endswith(" left")
    assert render.cells(shown.removeprefix("\r\x1b[K")) == 99


@pytest.mark.usefixtures("wide")
def test_the_speed_looks_at_the_last_seconds_only():
    bench = Bench(terminal=True)
    for second in range(60):
        bench.at(second, "download", second * 1e6, 1e9, "bytes")
    stalled = [bench.at(60 + second, "download", 59e6, 1e9, "bytes") for second in range(6)]
    assert "/s" not in stalled[-1]


@pytest.mark.usefixtures("wide")
def test_it_is_painted_ten_times_a_second_at_most_and_always_at_the_end():
    bench = Bench(terminal=True)
    painted = [bool(bench.at(i / 1000, "weights", i, 300, "layers")) for i in range(301)]
    assert sum(painted) == 4
    assert painted[0] and painted[-1]


def test_it_fits_the_terminal_and_cannot_be_used_to_command_it(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    bench = Bench(terminal=True)
    shown = bench.at(0, "download", 1, 2, "bytes", "\x1b[2J漢字漢字漢字")
    assert render.cells(shown.removeprefix("\r\x1b[K")) <= 19
    assert "\x1b[2J" not in shown


def test_short_prompts_are_not_worth_a_line():
    bench = Bench(terminal=True)
    assert not bench.at(0, "prompt", 0, 500, "tokens")
    assert bench.at(0, "prompt", 0, 5000, "tokens")


@pytest.mark.usefixtures("wide")
def test_a_benchmark_shows_how_long_it_takes():
    bench = Bench(terminal=True)
    bench.at(0, "bench", 0, 10, "prompts")
    assert bench.at(30, "bench", 1, 10, "prompts", "b").endswith("1 of 10 prompts  4 min 30 s left")


def test_clear_takes_the_line_away_once():
    bench = Bench(terminal=True)
    bench.at(0, "engine", 0, 0, "")
    bench.line.clear()
    bench.line.clear()
    assert bench.stream.getvalue() == "\r\x1b[KStarting the engine\r\x1b[K"


def test_without_a_terminal_only_downloads_speak_in_whole_lines():
    bench = Bench(terminal=False)
    bench.at(0, "weights", 1, 2, "layers")
    for done in range(0, 101, 10):
        bench.at(done, "download", done * 1e6, 100e6, "bytes", "PyPI")
    bench.at(101, "download", 100e6, 100e6, "bytes", "PyPI")
    bench.at(200, "verify", 1, 2, "bytes")
    assert bench.stream.getvalue() == "Downloading from PyPI (100 MB)\nDownloaded 100 MB.\n"


def test_a_second_source_is_said_too():
    bench = Bench(terminal=False)
    bench.at(0, "download", 0, 100e6, "bytes", "PyPI")
    bench.at(1, "download", 10e6, 100e6, "bytes", "PyPI")
    bench.at(2, "download", 0, 100e6, "bytes", "hub")
    assert bench.stream.getvalue() == "Downloading from PyPI (100 MB)\nDownloading from hub (100 MB)\n"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (98_362_432, "98.4 MB"), (999_600, "1.0 MB"), (5e12, "5000 GB")],
)
def test_sizes(nbytes, text):
    assert render.size(nbytes) == text


@pytest.mark.parametrize(("seconds", "text"), [(-1, "0 s"), (59.4, "59 s"), (60, "1 min 00 s"), (3725, "1 h 02 min")])
def test_durations(seconds, text):
    assert render.duration(seconds) == text


def test_a_wait_is_told_outside_a_terminal_too():
    bench = Bench(terminal=False)
    text = "the hub answered 500, trying again"
    assert bench.at(0.0, "wait", 0, 0, "bytes", f"{text} in 1 s") == f"Waiting: {text} in 1 s\n"
    assert bench.at(0.1, "wait", 0, 0, "bytes", f"{text} in 1 s") == ""
    assert bench.at(1.0, "wait", 0, 0, "bytes", text) == ""
    assert bench.at(1.2, "wait", 0, 0, "bytes", f"{text} in 2 s") == f"Waiting: {text} in 2 s\n"
