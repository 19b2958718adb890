"""Kill -9 in the middle of a reply: `benchmarks/peers/kill_chat.py` does the same thirty times, also with the real engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from killing import Victim, scripted, strike


@pytest.mark.thorough
@pytest.mark.parametrize(("victim", "delay"), [("chat", 0.2), ("chat", 1.9), ("engine", 0.7)])
def test_a_kill_costs_at_most_the_last_second(tmp_path: Path, victim: Victim, delay: float) -> None:
    outcome = strike(tmp_path, scripted(tmp_path, minutes=0.5), victim, delay)
    assert outcome.exact and outcome.state in ("partial", "interrupted")
    assert outcome.missing <= 1.0
    if victim == "engine":
        assert outcome.saved >= outcome.sent  # the chat lives: nothing that reached it is lost
