"""What acceptance takes on a CPU: rows walked while the draft survives, against tensors over all rows.

    python benchmarks/acceptance.py [--vocab 49152 151936] [--rows 1 4 8 16] [--samples 12]

Milliseconds of `accept.accept` for a chain, medians at one thread. The walk looks at 1 + accepted rows, so it is timed for a
draft of which none, half and all is accepted; the tensor form always looks at every row. Both must take the same tokens.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch

from outrider.core.sampling.accept import accept
from outrider.core.sampling.device import SamplingTensors, kind_of
from outrider.core.sampling.draft_tree import DraftTree
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import Sampler, Settings

SETTINGS = {
    "greedy": Settings(temperature=0),
    "T=0.7": Settings(temperature=0.7, top_p=1.0),
    "T=0.7 min-p 0.05": Settings(temperature=0.7, top_p=1.0, min_p=0.05),
    "T=0.7 top-k 40": Settings(temperature=0.7, top_k=40, top_p=1.0),
    "T=0.7 top-p 0.95": Settings(temperature=0.7, top_p=0.95),
    "T=0.7 both": Settings(temperature=0.7, top_k=40, top_p=0.95),
}
POSITION = 10


def milliseconds(work: Callable[[], object], samples: int) -> float:
    """Median of some calls, after two that are not counted."""
    taken: list[float] = []
    for _ in range(samples + 2):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return 1e3 * median(taken[2:])


def rows_of(settings: Settings, vocab: int, rows: int, samples: int) -> list[float]:
    """Times of the walk with nothing, half and all accepted, and of the tensor form."""
    generator = torch.Generator().manual_seed(rows)
    logits = torch.randn(rows, vocab, generator=generator) * 2
    logits[torch.arange(rows), torch.randint(0, vocab, (rows,), generator=generator)] += (
        14  # as sure as models often are
    )
    sampler, tensors, kind = Sampler(settings, Noise(3)), SamplingTensors.on(logits.device), kind_of(settings)
    tensors.set(settings, sampler.noise)
    assert kind is not None
    sampling = tensors.like(kind, sure=False)
    own = [sampler.token(row, POSITION + at) for at, row in enumerate(logits)]
    found: list[float] = []
    for right in (0, (rows - 1) // 2, rows - 1):
        ids = [token if at < right else (token + 1) % vocab for at, token in enumerate(own[:-1])]

        def draft(ids: list[int] = ids) -> DraftTree:
            return DraftTree(torch.tensor(ids, dtype=torch.int64))

        walked, by_tensors = accept(logits, draft(), sampler, POSITION), accept(logits, draft(), sampling, POSITION)
        assert by_tensors.sure is not None
        assert not by_tensors.sure or walked.tokens.tolist() == by_tensors.tokens[: 1 + right].tolist()
        found.append(milliseconds(lambda: accept(logits, draft(), sampler, POSITION).tokens.tolist(), samples))
    return [*found, milliseconds(lambda: accept(logits, draft(), sampling, POSITION).tokens.tolist(), samples)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, nargs="+", default=[49_152, 151_936])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--samples", type=int, default=12)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'vocabulary':>10} {'rows':>4}  {'settings':<18} {'none':>8} {'half':>8} {'all':>8} {'tensors':>8}  ms")
    with torch.inference_mode():
        for vocab in options.vocab:
            for name, settings in SETTINGS.items():
                for rows in options.rows:
                    times = rows_of(settings, vocab, rows, options.samples)
                    print(f"{vocab:>10} {rows:>4}  {name:<18} " + " ".join(f"{one:8.2f}" for one in times), flush=True)


if __name__ == "__main__":
    main()
