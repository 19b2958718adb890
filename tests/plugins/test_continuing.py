"""Training a drafter on: what was written is taken over whole, words and states with it; what does not fit is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pairs
import pupils
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from outrider.core.base.errors import ModelError, UsageError
from outrider.core.drafting import registry
from outrider.core.train.answers import Kept
from outrider.core.train.offline_acceptance import measure_acceptance
from outrider.core.train.recipe import Continuing, Trainee
from outrider.core.train.run_settings import recipe_of
from outrider.core.train.teacher import Teacher

CASES = {
    "eagle": ("eagle", {"words": 30, "layers": (1, 2, 3)}),
    "eagle with its own rows": ("eagle", {"words": 30, "head": True}),
    "eagle of the first version": ("eagle", {"version": 1}),
    "dflash": ("dflash", {"words": 30, "states": 3, "layers": 1, "block": 4}),
    "dspark": ("dflash", {"words": 30, "states": 3, "layers": 1, "block": 4, "kind": "dspark", "rank": 6}),
    "medusa": ("medusa", {"heads": 2}),
    "medusa with its own rows": ("medusa", {"heads": 2, "head": True}),
    "mtp": ("mtp", {"depths": 2, "first": 0.0}),
    "parallel heads": ("mtp", {"depths": 2, "kind": "parallel"}),
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Teacher:
    return pupils.on_disk(tmp_path_factory.mktemp("target"), layers=6)


def fresh(teacher: Teacher, method: str, options: dict[str, Any], seed: int = 1, upwards: bool = True) -> Any:
    recipe = recipe_of(method)
    counts = torch.arange(teacher.info.vocab) if upwards else torch.arange(teacher.info.vocab).flip(0)
    made = recipe.trainee(teacher, recipe.settings(**options), counts, torch.Generator().manual_seed(seed))
    assert isinstance(made, nn.Module) and isinstance(made, Continuing)
    return made


def stirred(trainee: Any) -> Any:
    g = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for part in trainee.parameters():
            part.copy_((part + 0.1 * torch.randn(part.shape, generator=g)).bfloat16())
    return trainee


def written(trainee: Trainee, folder: Path, *, whole: bool = False) -> tuple[dict[str, Tensor], Any]:
    trainee.save(folder, whole=whole)
    (file,) = folder.glob("*.safetensors")
    names = [name for name in ("config.json", "params.json") if (folder / name).exists()]
    return load_file(file), [json.loads((folder / name).read_text()) for name in names]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_drafter_is_taken_over_as_it_was_written(teacher: Teacher, tmp_path: Path, case: str, whole: bool) -> None:
    method, options = CASES[case]
    old = stirred(fresh(teacher, method, options))
    tensors, told = written(old, tmp_path / "old", whole=whole)
    known = {
        name: value for name, value in options.items() if name in ("version", "depths", "kind") and method != "dflash"
    }
    new = fresh(teacher, method, known, seed=2, upwards=False)
    new.load(tmp_path / "old")
    again, says = written(new, tmp_path / "new", whole=whole)
    assert says == told and again.keys() == tensors.keys()
    assert all(torch.equal(again[name], part) for name, part in tensors.items())
    texts = pupils.answers(teacher, 2, 14)
    assert new.states == old.states
    batch = pupils.batch(teacher, texts, new.states)
    losses = [each.learn(batch, torch.Generator().manual_seed(4))["loss"] for each in (old, new)]
    assert losses[0] == losses[1]
    assert all(part.grad is not None for group in new.groups() for part in group.parts if part.requires_grad)


@pytest.mark.parametrize(
    ("case", "other", "says"),
    [
        ("eagle", {"version": 1}, "version=3"),
        ("eagle of the first version", {}, "version=1"),
        ("mtp", {"depths": 1}, "depths=2"),
        ("parallel heads", {"depths": 3, "kind": "parallel"}, "depths=2"),
    ],
)
def test_a_drafter_of_other_options_is_refused(
    teacher: Teacher, tmp_path: Path, case: str, other: dict[str, Any], says: str
) -> None:
    method, options = CASES[case]
    stirred(fresh(teacher, method, options)).save(tmp_path / "old", whole=True)
    with pytest.raises(UsageError, match=says):
        fresh(teacher, method, other).load(tmp_path / "old")


def test_layers_that_are_not_there_begin_as_copies(teacher: Teacher, tmp_path: Path) -> None:
    one = stirred(fresh(teacher, "mtp", {"depths": 1}))
    one.save(tmp_path / "one", whole=False)
    three = fresh(teacher, "mtp", {"depths": 3})
    three.load(tmp_path / "one")
    for depth in three.depths:
        torch.testing.assert_close(depth.state_dict(), one.depths[0].state_dict())


def test_a_draft_of_a_newer_kind_is_refused(teacher: Teacher, tmp_path: Path) -> None:
    fresh(teacher, "eagle", {"words": 30}).save(tmp_path / "old", whole=False)
    file = tmp_path / "old" / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {f"fc_norm.{index}.weight": torch.ones(32) for index in range(3)}, file)
    with pytest.raises(ModelError, match="newer kind"):
        fresh(teacher, "eagle", {"words": 30}).load(tmp_path / "old")


@pytest.mark.parametrize(
    ("name", "method", "options"),
    [
        ("eagle1", "eagle", {"version": 1}),
        ("eagle3", "eagle", {}),
        ("eagle3_speculators", "eagle", {}),
        ("dspark", "dflash", {}),
        ("dflash_deepspec", "dflash", {}),
        ("dspark_speculators", "dflash", {}),
        ("medusa", "medusa", {}),
    ],
)
def test_published_drafters_draft_the_same_when_they_are_written_again(
    tmp_path: Path, name: str, method: str, options: dict[str, Any]
) -> None:
    pair = pairs.Pair(name)
    teacher = Teacher(pair.target())
    trainee = fresh(teacher, method, options)
    trainee.load(pair.folder)
    trainee.save(tmp_path / "again", whole=True)
    texts = [Kept(0, len(pair.prompts[0]), [*pair.prompts[0], *pair.texts[0]])]
    made = []
    for folder in (pair.folder, tmp_path / "again"):
        rider = registry.load(method, teacher.target, {"weights": str(folder)}, pytest.fail)
        made.append(measure_acceptance(rider, teacher, texts, 5))
    assert made[0] == made[1]
    assert made[0].tokens > made[0].rounds
