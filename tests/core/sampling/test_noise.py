"""Position-keyed noise: reproducible bits, uniform, independent across streams, positions and ids."""

from __future__ import annotations

import torch

from outrider.core.sampling.noise import STREAMS, Noise, fresh_seed, gumbel


def reference(seed: int, stream: str, position: int, token: int) -> float:
    """The same hash in plain integers."""
    mask, step = (1 << 64) - 1, 0x9E3779B97F4A7C15

    def mix(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    key = mix((mix((seed * step + STREAMS[stream]) & mask) + position * step) & mask)
    return ((mix((token * step + key) & mask) >> 12) + 0.5) / 2**52


def test_bits_equal_plain_integer_arithmetic() -> None:
    ids = torch.tensor([0, 1, 2, 77, 49151, 262143])
    for seed in (0, 1, 2**63 - 1):
        for stream in STREAMS:
            for position in (0, 1, 8191, 10**6):
                got = Noise(seed).uniform(stream, position, ids).tolist()
                assert got == [reference(seed, stream, position, i) for i in ids.tolist()]


def test_whole_vocabulary_equals_single_ids() -> None:
    noise = Noise(5)
    whole = noise.uniform_all("target", 9, 1000, torch.device("cpu"))
    assert torch.equal(whole, noise.uniform("target", 9, torch.arange(1000)))
    assert torch.equal(whole, noise.uniform_all("target", 9, 1000, torch.device("cpu")))


def test_uniform_and_uncorrelated() -> None:
    noise = Noise(11)
    rows = torch.stack([noise.uniform("target", p, torch.arange(4096)) for p in range(64)])
    assert float(rows.min()) > 0 and float(rows.max()) < 1
    counts = torch.histc(rows.float().flatten(), bins=64, min=0, max=1).double()
    expected = rows.numel() / 64
    chi = float(((counts - expected) ** 2 / expected).sum())
    assert chi < 63 + 5 * (2 * 63) ** 0.5
    centred = rows - 0.5
    across_positions = (centred[:-1] * centred[1:]).mean() * 12
    across_ids = (centred[:, :-1] * centred[:, 1:]).mean() * 12
    other_stream = torch.stack([noise.uniform("draft", p, torch.arange(4096)) for p in range(64)]) - 0.5
    bound = 5 / rows.numel() ** 0.5
    assert abs(float(across_positions)) < bound
    assert abs(float(across_ids)) < bound
    assert abs(float((centred * other_stream).mean() * 12)) < bound


def test_draw_follows_the_law() -> None:
    probs = torch.tensor([0.5, 0.0, 0.3, 0.2], dtype=torch.float64)
    noise = Noise(3)
    counts = torch.zeros(4)
    for position in range(4000):
        counts[noise.draw("draft", position, probs)] += 1
    assert counts[1] == 0
    expected = probs * 4000
    kept = expected > 0
    chi = float(((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum())
    assert chi < 2 + 5 * 2


def test_gumbel_is_finite_at_the_ends() -> None:
    ends = torch.tensor([0.5 / 2**52, (2**52 - 0.5) / 2**52], dtype=torch.float64)
    assert bool(gumbel(ends).isfinite().all())


def test_fresh_seeds_differ_and_fit() -> None:
    seeds = {fresh_seed() for _ in range(50)}
    assert len(seeds) == 50
    assert all(0 <= seed < 2**63 for seed in seeds)
