"""Kill -9 of a chat and of its engine at random moments of a reply: what the store has of it.

    PYTHONPATH=tests/support python benchmarks/peers/kill_chat.py [--times 30] [--real [--models FOLDER]] [--seed N]

`--real` uses the engine itself with the starter model, else a scripted one answers. Exit code 1 if a store does not open,
holds words that were never sent, or misses more than the last second.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from killing import Outcome, Victim, real, scripted, strike

QUESTION = "Tell me a very long story about a lighthouse keeper, with many chapters."


def main() -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(description="Kill a chat in the middle of a reply, many times.")
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--models", type=Path, help="library that holds the starter model")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    print(f"{'':>3} {'killed':8} {'after':>7} {'sent':>7} {'saved':>7} {'missing':>9}  state")
    bad = 0
    for number in range(1, options.times + 1):
        victim: Victim = "engine" if number % 3 == 0 else "chat"
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            engine = real(QUESTION, options.models) if options.real else scripted(folder)
            outcome = strike(folder, engine, victim, draw.uniform(0.0, 5.0))
        good = outcome.exact and outcome.missing <= 1.0
        bad += not good
        print(_row(number, outcome), "" if good else "  BAD", flush=True)
    print(f"{options.times - bad} of {options.times}: the store opened and at most the last second was missing")
    return 1 if bad else 0


def _row(number: int, told: Outcome) -> str:
    what = f"{number:3} {told.victim:8} {told.delay:5.2f} s {told.sent:7} {told.saved:7}"
    return f"{what} {told.missing:7.2f} s  {told.state}"


if __name__ == "__main__":
    sys.exit(main())
