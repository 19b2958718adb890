"""Run lengths and packed lists."""

from __future__ import annotations

import random

import pytest

from outrider.app.chat.marks import Runs
from outrider.app.store import codec, ids
from outrider.app.store.records import Pass


def test_run_lengths_come_back() -> None:
    rng = random.Random(1)
    for length in (0, 1, 2, 50, 999):
        kinds = "".join(rng.choices("ACBP", (9, 1, 2, 4), k=length))
        text = codec.squeeze(kinds)
        assert codec.expand(text) == kinds and codec.count(text) == length
        runs = Runs()
        for kind in kinds:
            runs.add(kind, 1)  # type: ignore[arg-type]
        assert runs.encode() == text and list(codec.runs_of(text, length)) == list(runs)
    assert codec.squeeze("AAACP") == "A3C1P1"


def test_runs_are_cut_and_filled_to_the_text() -> None:
    assert codec.runs_of("P3A5", 5).encode() == "P3A2"
    assert codec.runs_of("A2", 5).encode() == "A2P3"


@pytest.mark.parametrize("text", ["X3", "A", "A0", "3A", "A3 P2", "A-1", "A1234567890"])
def test_what_is_no_run_length_is_refused(text: str) -> None:
    for read in (codec.expand, codec.count, lambda words: codec.runs_of(words, 9)):
        with pytest.raises(ValueError):
            read(text)


def test_ids_and_passes_come_back() -> None:
    tokens = [0, 1, 255, 256, 49151, 2**32 - 1]
    assert codec.unpack_ids(codec.pack_ids(tokens)) == tokens and codec.unpack_ids(codec.pack_ids([])) == []
    passes = [Pass(0.25, "suffix", 3, 2, 3, 0, 11, 0.1, 1.5, 0.2)]
    assert codec.unpack(codec.pack(passes), list[Pass]) == passes
    for data in (b"", b"nonsense", codec.pack_ids(tokens)[:-3]):
        with pytest.raises(ValueError):
            codec.unpack_ids(data)


def test_ids_are_short_different_and_in_order() -> None:
    made = [ids.new_id() for _ in range(500)]
    assert made == sorted(set(made)) and all(len(name) == 26 and name.isalnum() for name in made)
