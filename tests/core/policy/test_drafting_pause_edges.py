"""What is no loss but noise; when plain rounds and drafts may be launched ahead."""

from __future__ import annotations

from itertools import cycle, islice

from outrider.core.policy.drafting_pause import CALM, CALMEST, KNOWN, LOOK, DraftingPause, DraftsAhead, PlainRuns


def looked(plain: tuple[float, ...], tokens: int, seconds: tuple[float, ...], rounds: int = LOOK) -> bool:
    """Whether it rests after plain passes and drafted rounds of these seconds, each in turns."""
    one = DraftingPause()
    for took in islice(cycle(plain), 8 * KNOWN):
        one.alone(took)
    for took in islice(cycle(seconds), rounds):
        one.asked(tokens, took)
    return one.begins()


def test_a_clear_loss_of_several_tokens_is_one_though_plain_passes_scatter() -> None:
    assert looked((0.95, 1.05), 2, (3.0,))


def test_a_loss_within_what_plain_passes_scatter_is_none() -> None:
    """Four tokens at once are as unsure as four times a plain pass."""
    assert not looked((0.9, 1.1), 4, (4.16,))


def test_a_loss_within_what_drafted_rounds_scatter_is_none() -> None:
    assert not looked((1.0,), 1, (0.5, 1.6))
    assert looked((1.0,), 1, (1.05,))


def test_after_a_wrong_guess_twice_as_many_plain_rounds_are_waited_for() -> None:
    runs, needed = PlainRuns(), CALM
    while needed < CALMEST:
        for _ in range(needed - 1):
            assert not runs.go_on
            runs.add(plain=True)
        assert runs.go_on
        runs.missed()
        needed *= 2
    for _ in range(CALMEST - 1):
        assert not runs.go_on
        runs.add(plain=True)
    assert runs.go_on
    runs.add(plain=True)  # so long a run makes up for all wrong guesses
    runs.add(plain=False)
    for _ in range(CALM - 1):
        assert not runs.go_on
        runs.add(plain=True)
    assert runs.go_on


def test_drafts_ahead_pay_while_the_host_takes_more_than_other_offers_bring() -> None:
    ahead = DraftsAhead()
    assert ahead.pays
    for _ in range(200):
        ahead.looked(2.0, 2.0)
    assert ahead.pays, "nobody had a better offer"
    for _ in range(200):
        ahead.looked(2.0, 1.0)
    assert not ahead.pays
    for _ in range(200):
        ahead.took(0.9, 1.0)
    assert ahead.pays, "the host takes most of a round"
    for _ in range(200):
        ahead.took(0.0, 1.0)
        ahead.took(1.0, 0.0)  # nothing was timed
    assert not ahead.pays
