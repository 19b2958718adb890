"""Every mixer's roll-back inside whole answers: scripted drafters on the golden checkpoints, rewinds and further turns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import toys
from safetensors.torch import load_file

from outrider.core.answer import Conversation
from outrider.core.drafting import ModelInfo
from outrider.core.target.load import load_decoder
from outrider.core.target.model import SLACK, TargetModel
from outrider.core.weights.checkpoint import open_checkpoint

GOLDEN = Path(__file__).resolve().parents[4] / "shared" / "data" / "golden"
LEFT_OUT = {"mimo_v2_flash", "nemotron_h", "granitemoehybrid"}
NAMES = sorted(p.name for p in GOLDEN.iterdir() if p.is_dir() and p.name not in LEFT_OUT) if GOLDEN.is_dir() else []
CONTEXT = 64

pytestmark = pytest.mark.skipif(not GOLDEN.is_dir(), reason="the golden checkpoints are not beside this checkout")


class Golden:
    """A golden checkpoint as a target, with its greedy continuation."""

    def __init__(self, name: str) -> None:
        folder = GOLDEN / name
        checkpoint = open_checkpoint(folder)
        # the dynamic kinds fix their table by the context: the reference was made at the length of the text
        config = json.loads((folder / "config.json").read_text())
        made_for = config.get("text_config", config)["max_position_embeddings"]
        original = (config.get("rope_parameters") or {}).get("original_max_position_embeddings", made_for)
        self.decoder = load_decoder(checkpoint, torch.float32, torch.device("cpu"), CONTEXT + SLACK)
        short = load_decoder(checkpoint, torch.float32, torch.device("cpu"), min(CONTEXT, original))
        self.decoder.weights.tables.update({key: self._longer(key, short) for key in short.weights.tables})
        checkpoint.close()
        self.info = ModelInfo(name, "golden", 256, 64, len(self.decoder.weights.blocks), "bytes")
        tensors = load_file(folder / "golden.safetensors")
        self.prompt = tensors["greedy.prompt_ids"][0].tolist()
        self.text = tensors["greedy.new_ids"][0].tolist()

    def _longer(self, key, short):
        from outrider.core.target.rope import table

        rope, head = key
        return table(rope, head, short.spec.context, CONTEXT + SLACK, torch.float32, short.weights.rows)

    def talk(self) -> Conversation:
        return Conversation(TargetModel(self.decoder, self.info, CONTEXT))


@pytest.fixture(scope="module", params=NAMES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)


def answer(golden: Golden, talk: Conversation, prompt: list[int], right: int | None, tokens: int = 5) -> list[int]:
    drafter = None
    if right is not None:
        known = golden.text if prompt == golden.prompt else []
        drafter = toys.guard(toys.Knows(len(prompt), known, right, vocab=256))
    report = toys.answer(talk, prompt, drafter, limit=len(golden.text), tokens=tokens)
    if right == 99 and prompt == golden.prompt:
        assert report.accepted == report.proposed > 0
    if right == 0:
        assert report.accepted == 0
    return report.token_ids


@pytest.mark.parametrize("right", [None, 99, 0, 1, 3], ids=["plain", "right", "wrong", "right-1", "right-3"])
def test_the_continuation_is_the_reference(golden: Golden, right: int | None) -> None:
    assert answer(golden, golden.talk(), golden.prompt, right) == golden.text


def test_further_turns_and_edits(golden: Golden) -> None:
    """The next turn goes on from a kept state, an edit goes back past it; both as if told afresh."""
    talk = golden.talk()
    assert answer(golden, talk, golden.prompt, 2) == golden.text
    longer = [*golden.prompt, *golden.text[:-1], 7]
    kept = talk.target.length
    first = answer(golden, talk, longer, None)
    assert first == answer(golden, golden.talk(), longer, None)
    assert kept >= len(golden.prompt)
    edited = [*golden.prompt[:10], 3, 1, 4]
    assert answer(golden, talk, edited, None) == answer(golden, golden.talk(), edited, None)
    assert answer(golden, talk, golden.prompt, 1) == golden.text


def test_the_next_turn_is_no_full_prefill(golden: Golden) -> None:
    talk = golden.talk()
    answer(golden, talk, golden.prompt, 2)
    said = talk.tokens[: talk.target.length]
    assert talk.reuse([*said, 9, 9]) == len(said)
