"""What is written whole says what the small files say, and holds what other readers of its format look for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pupils
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.core.base.errors import UsageError
from outrider.core.drafting import Committed, Context, Stream, registry
from outrider.core.train.run_settings import recipe_of
from outrider.core.train.teacher import Teacher

BLOCK = {"words": 30, "states": 3, "layers": 1, "block": 4}
CASES = {
    "eagle": ("eagle", {"words": 30}),
    "eagle of all words": ("eagle", {"words": 0}),
    "eagle of the first version": ("eagle", {"version": 1}),
    "dflash": ("dflash", BLOCK),
    "dflash of all words": ("dflash", BLOCK | {"words": 0}),
    "dspark": ("dflash", BLOCK | {"kind": "dspark", "rank": 6}),
    "medusa": ("medusa", {"heads": 2}),
}
LEFT_OUT = {  # of small files, and there in whole ones
    "eagle": {"lm_head.weight", "embed_tokens.weight"},
    "eagle of all words": {"lm_head.weight", "embed_tokens.weight"},
    "eagle of the first version": {"embed_tokens.weight"},
    "dflash": {"lm_head.weight"},
    "dflash of all words": set(),  # its readers take the target's
    "dspark": {"lm_head.weight"},
    "medusa": {"0.1.weight", "1.1.weight"},
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Teacher:
    """A target whose weights 16 bits hold, so that nothing is rounded when it is written."""
    folder = tmp_path_factory.mktemp("target")
    pupils.on_disk(folder, layers=6)
    tensors = load_file(folder / "model.safetensors")
    save_file({name: part.bfloat16().float() for name, part in tensors.items()}, folder / "model.safetensors")
    return pupils.from_disk(folder)


def stirred(teacher: Teacher, case: str) -> Any:
    """A trainee that is not as it begins."""
    method, options = CASES[case]
    recipe, g = recipe_of(method), torch.Generator().manual_seed(9)
    counts = torch.arange(teacher.info.vocab)
    trainee: Any = recipe.trainee(teacher, recipe.settings(**options), counts, torch.Generator().manual_seed(1))
    with torch.no_grad():
        for part in trainee.parameters():
            part.copy_((part + 0.1 * torch.randn(part.shape, generator=g)).bfloat16())
    return trainee


def said(method: str, teacher: Teacher, folder: Path, ids: Sequence[int]) -> tuple[list[list[int]], Tensor]:
    """Drafts behind some tokens of a text, and the rows of logits [n, V] that they were chosen by."""
    drafter = registry.build(method, teacher.target, {"weights": str(folder)})
    states, rows = teacher.read(ids, drafter.needs.hidden), list[Tensor]()
    drafts: list[list[int]] = []

    def sample(logits: Tensor, position: int, path: Sequence[int]) -> Tensor:
        rows.extend(logits.clone())
        return logits.argmax(-1)

    def law(logits: Tensor, path: Sequence[int]) -> Tensor:
        raise AssertionError

    def rng(position: int) -> Stream:
        raise AssertionError

    for root in (5, 9, 13):
        drafter.reset()
        drafter.advance(Committed(0, torch.tensor(ids[: root + 1]), torch.empty(0, dtype=torch.int64), states[:root]))
        draft = drafter.propose(Context(ids[: root + 1], 3, False, sample, law, rng))
        assert draft is not None
        drafts.append(draft.tokens.tolist())
    return drafts, torch.stack(rows)


@pytest.mark.parametrize("case", CASES)
def test_whole_and_small_files_say_the_same(teacher: Teacher, tmp_path: Path, case: str) -> None:
    method, trainee = CASES[case][0], stirred(teacher, case)
    ids, found, made = pupils.answers(teacher, 1, 16)[0].ids, [], []
    for whole in (False, True):
        folder = tmp_path / f"whole-{whole}"
        trainee.save(folder, whole=whole)
        found.append(load_file(next(folder.glob("*.safetensors"))))
        made.append(said(method, teacher, folder, ids))
    assert found[1].keys() - found[0].keys() == LEFT_OUT[case]
    assert made[0][0] == made[1][0]
    torch.testing.assert_close(made[0][1], made[1][1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", ["eagle", "eagle of the first version"])
def test_whole_eagle_drafts_hold_the_embedding_as_it_is_published(teacher: Teacher, tmp_path: Path, case: str) -> None:
    stirred(teacher, case).save(tmp_path / "out", whole=True)
    published = load_file(Path(teacher.info.path) / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")["embed_tokens.weight"].float(), published)


def test_whole_medusa_heads_lie_there_as_their_authors_read_them(teacher: Teacher, tmp_path: Path) -> None:
    trainee = stirred(teacher, "medusa")
    trainee.save(tmp_path / "small", whole=False)
    assert not list((tmp_path / "small").glob("*.pt"))
    trainee.save(tmp_path / "out", whole=True)
    pickled = torch.load(tmp_path / "out" / "medusa_lm_head.pt", weights_only=True)
    tensors = load_file(tmp_path / "out" / "medusa_lm_head.safetensors")
    assert pickled.keys() == tensors.keys()
    assert all(torch.equal(pickled[name], part) for name, part in tensors.items())
    ids = pupils.answers(teacher, 1, 16)[0].ids
    both = said("medusa", teacher, tmp_path / "out", ids)
    (tmp_path / "out" / "medusa_lm_head.safetensors").unlink()
    alone = said("medusa", teacher, tmp_path / "out", ids)
    assert alone[0] == both[0] and torch.equal(alone[1], both[1])


@pytest.mark.parametrize("case", ["dflash", "dflash of all words", "dspark"])
def test_block_drafters_say_how_many_words_they_know(teacher: Teacher, tmp_path: Path, case: str) -> None:
    """Where the config does not, speculators takes 32000."""
    trainee = stirred(teacher, case)
    trainee.save(tmp_path / "out", whole=True)
    told = json.loads((tmp_path / "out" / "config.json").read_text())
    assert told["draft_vocab_size"] == (30 if CASES[case][1]["words"] else teacher.info.vocab)


def test_a_block_drafter_of_all_words_has_no_rows_of_its_own_to_train(teacher: Teacher, tmp_path: Path) -> None:
    recipe, counts = recipe_of("dflash"), torch.arange(teacher.info.vocab)
    with pytest.raises(UsageError, match="knows every token"):
        recipe.trainee(teacher, recipe.settings(**BLOCK | {"words": 0, "head": True}), counts, torch.Generator())
    stirred(teacher, "dflash of all words").save(tmp_path / "old", whole=True)
    trainee: Any = recipe.trainee(teacher, recipe.settings(**BLOCK | {"head": True}), counts, torch.Generator())
    with pytest.raises(UsageError, match="knows every token"):
        trainee.load(tmp_path / "old")
