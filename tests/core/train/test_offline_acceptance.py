"""Acceptance on paper: counts by how much was read, and the same as an answer gives where the target has to read along."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pupils
import pytest
import toys

from outrider.core.drafting import registry
from outrider.core.session.chat_cache import ChatCache
from outrider.core.train.offline_acceptance import Acceptance, measure_acceptance


def test_rounds_are_counted_by_what_was_read_before() -> None:
    made = Acceptance()
    for before, accepted in ((1, 0), (256, 2), (257, 1), (512, 0), (513, 3)):
        made.count(4, accepted, before)
    assert made.near == {256: (2, 4), 512: (2, 3), 1024: (1, 4)}
    assert made.per_pass == 11 / 5


def test_a_drafter_that_runs_the_targets_layers_is_measured_as_an_answer_would_measure_it(tmp_path: Path) -> None:
    teacher = pupils.on_disk(tmp_path, layers=4)
    info = teacher.info
    teacher.target.info = replace(info, config={**info.config, "exit_layer": 3})
    texts = pupils.answers(teacher, 6, length=30)
    rider = registry.load("layerskip", teacher.target, {}, pytest.fail)
    made = measure_acceptance(rider, teacher, texts, 4)
    tokens = passes = 0
    for text in texts:
        limit = len(text.ids) - text.first
        report = toys.answer(ChatCache(teacher.target), text.ids[: text.first], rider, limit=limit, tokens=4)
        assert report.token_ids == text.ids[text.first :]
        tokens, passes = tokens + len(report.token_ids) - 1, passes + report.passes
    assert (made.tokens, made.rounds) == (tokens, passes)
    assert made.rounds < made.tokens
