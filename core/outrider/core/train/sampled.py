"""Answers of a model that is being trained, drawn by the engine's own decoder: one pass for each token of all of them.

Letters: `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.core.base.errors import BrokenFileError
from outrider.core.formats.layout import Layout
from outrider.core.formats.quantized import Grouped
from outrider.core.model.batched import Batched, SequencePass
from outrider.core.model.decoder import Decoder as Engine
from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.model.load import load_decoder
from outrider.core.model.model import MAX_DRAFT_ROWS
from outrider.core.text.files import TokenizerFiles

from .decoder import Decoder


class Held:
    """Weights in memory as a checkpoint."""

    path = Path("in memory")
    format = "safetensors"
    quantisation = "fp32"

    def __init__(self, decoder: Decoder) -> None:
        self._tensors: dict[str, Tensor] = {name: part.detach() for name, part in decoder.state_dict().items()}
        self.config: dict[str, Any] = decoder.config
        self.generation: dict[str, Any] = {}
        self.nbytes = sum(part.nbytes for part in self._tensors.values())

    def names(self) -> list[str]:
        """As `Checkpoint`."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """As `Checkpoint`."""
        return tuple(self.load(name).shape)

    def load(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A copy: what is trained goes on changing."""
        if name not in self._tensors:
            raise BrokenFileError(f"The model in memory has no tensor {name}.")
        return self._tensors[name].to(dtype, copy=True)

    def layout(self, name: str) -> Layout | None:
        """Nothing is quantised."""
        return None

    def grouped(self, name: str) -> Grouped | None:
        """Nothing is quantised."""
        return None

    def text(self) -> TokenizerFiles:
        """It has no tokenizer."""
        return TokenizerFiles(origin=str(self.path), config=self.config)

    def close(self) -> None:
        """Nothing is open."""


def engine(decoder: Decoder, form: WeightFormat, room: int) -> Engine:
    """The same model as the engine runs it, for texts of `room` tokens; its weights stay what they are now."""
    return load_decoder(Held(decoder), form, room + MAX_DRAFT_ROWS)


@torch.no_grad()
def sample(
    model: Engine, prompts: Sequence[Sequence[int]], most: int, ends: Collection[int], luck: torch.Generator
) -> list[list[int]]:
    """Up to `most` tokens behind each prompt, drawn from the model's own law with `luck`; one of `ends` is the last.

    Prompts have a token at least.
    """
    together = Batched(model)
    caches = [model.new_cache(len(prompt) + most + MAX_DRAFT_ROWS) for prompt in prompts]
    samples: list[list[int]] = [[] for _ in prompts]
    for prompt, cache in zip(prompts, caches, strict=True):
        if len(prompt) > 1:
            model.run(torch.tensor(prompt[:-1], device=model.device), cache, last=True)
            cache.commit(len(prompt) - 1)
    newest, live = [prompt[-1] for prompt in prompts], list(range(len(prompts)))
    for _ in range(most):
        passes = together.together([SequencePass([newest[number]], caches[number]) for number in live])
        for number, result in zip(live, passes, strict=True):
            caches[number].commit(caches[number].length + 1)
            law = result.logits[0].double().softmax(-1).cpu()  # [V]
            newest[number] = int(torch.multinomial(law, 1, generator=luck))
            samples[number].append(newest[number])
        live = [number for number in live if newest[number] not in ends]
        if not live:
            break
    return samples
