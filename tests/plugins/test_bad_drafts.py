"""What goes wrong while a drafter rides: numbers that are none, drafts that are none, files that fail under a running chat."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import layers
import pytest
import torch
import toys
from goods import GOODS, target
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.core.base.errors import OutriderError
from outrider.core.base.protocol import DrafterChoice, Generate, Message, ModelChoice, Notice, Report, Sampling
from outrider.core.drafting import Context, Draft, Shape, Stateless, registry
from outrider.core.model.decoder import Decoder
from outrider.core.model.kernels.linear import Linear
from outrider.core.model.model import TargetModel
from outrider.core.session.chat_cache import ChatCache
from outrider.core.session.engine import Engine
from outrider.drafters.suffix import WEIGHTS, Suffix

PROMPT = [5, 9, 13, 9, 5, 9, 13, 200, 31, 9]
WORDS = 48  # of the toy target

# ---------------------------------------------------------------------------------------------------- numbers


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TargetModel:
    return layers.target(toys.checkpoint(tmp_path_factory.mktemp("target") / "toy"))


def matrices(thing: Any, theirs: set[int], seen: set[int]) -> Iterator[Tensor]:
    """Every matrix that a drafter multiplies with, but those of its target."""
    if id(thing) in seen or isinstance(thing, TargetModel | type):
        return
    seen.add(id(thing))
    weight = getattr(thing, "weight", None)
    if isinstance(thing, Linear) and isinstance(weight, Tensor) and weight.data_ptr() not in theirs:
        yield weight
    if isinstance(thing, dict):
        parts: list[Any] = list(thing.values())
    elif isinstance(thing, list | tuple):
        parts = list(thing)
    else:
        names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        parts = [getattr(thing, name, None) for name in (*names, *getattr(thing, "__dict__", ()))]
    for part in parts:
        if not isinstance(part, Tensor | str | int | float | None):
            yield from matrices(part, theirs, seen)


def held(decoder: Decoder) -> set[int]:
    return {part.data_ptr() for part in matrices(decoder, set(), set())}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A good drafter of every form, never to be changed on disk."""
    root = tmp_path_factory.mktemp("good")
    return {name: good.make(root / name) for name, good in GOODS.items()}


@pytest.mark.parametrize(("most", "value"), [(None, torch.nan), (None, torch.inf), (1, torch.nan)], ids=str)
@pytest.mark.parametrize("name", list(GOODS))
def test_output_that_is_no_number_is_not_proposed(
    name: str, most: int | None, value: float, made: dict[str, Path], model: TargetModel
) -> None:
    """The answer is the plain one, with all matrices spoilt or the last one alone, before which there may be tokens.

    A draft model reads everything anew, once; then it is switched off, since that would cost a prefill in every round.
    """
    plain = toys.answer(ChatCache(target(name, model)), PROMPT, limit=6)
    cache, notes = ChatCache(target(name, model)), list[str]()
    loaded = registry.load(GOODS[name].method, cache.target, {"weights": str(made[name])}, notes.append)
    found = list(matrices(loaded._drafter, held(model.decoder), set()))
    with torch.inference_mode():
        for weight in found[-most:] if most else found:
            weight[:] = weight * 0 + value  # a copy of its own, if the file is mapped
    got = toys.answer(cache, PROMPT, loaded, limit=6)
    assert got.token_ids == plain.token_ids
    assert most or (got.proposed, got.drafters) == (0, {"none": got.passes})
    told = (
        "The drafter draft_model failed in propose: What it says is no number. It is switched off; the answer goes on"
    )
    assert [note.startswith(told) for note in notes] == ([True] if name == "draft_model" else [])


class Proposes(Stateless):
    """The same draft in every round."""

    def __init__(self, draft: object) -> None:
        self.draft, self.shape = draft, Shape(nodes=4, depth=4)

    def propose(self, context: Context) -> Draft | None:
        return self.draft  # type: ignore[return-value]


def _tree(*parents: float, kind: torch.dtype = torch.int64) -> Draft:
    return Draft(torch.arange(2), torch.tensor(parents, dtype=kind))


def _probs(*rows: list[float]) -> Draft:
    law = torch.zeros(2, WORDS)
    law[:, : len(rows[0])] = torch.tensor(rows)
    return Draft(torch.arange(2), probs=law)


DRAFTS: dict[str, tuple[object, str]] = {
    "a node that is its own parent": (_tree(0, -1), "parents do not come before"),
    "a circle": (_tree(1, 0), "parents do not come before"),
    "a parent behind its child": (_tree(-1, 1), "parents do not come before"),
    "a parent beyond the draft": (_tree(-1, 2), "parents do not come before"),
    "a parent before the root": (_tree(-1, -2), "parents do not come before"),
    "a parent too few": (_tree(-1), "no list of parents"),
    "a parent too many": (_tree(-1, 0, 1), "no list of parents"),
    "parents between nodes": (_tree(-1, -0.5, kind=torch.float32), "no list of parents"),
    "parents in a table": (Draft(torch.arange(2), torch.tensor([[-1], [0]])), "no list of parents"),
    "parents that are no tensor": (Draft(torch.arange(2), [-1, 0]), "failed in propose"),  # type: ignore[arg-type]
    "tokens that are no tensor": (Draft([1, 2]), "failed in propose"),  # type: ignore[arg-type]
    "tokens that are complex": (Draft(torch.ones(2, dtype=torch.complex64)), "proposed something|failed in propose"),
    "a token behind the last": (Draft(torch.tensor([WORDS])), "outside the vocabulary"),
    "a chance below nothing": (_probs([1.5, -0.5], [0.5, 0.5]), "probabilities that are none"),
    "a chance without end": (_probs([torch.inf, 0.0], [0.5, 0.5]), "probabilities that are none"),
    "a chance that is no number": (_probs([0.5, 0.5], [torch.nan, 0.5]), "probabilities that are none"),
    "chances that are too many": (_probs([0.7, 0.7], [0.5, 0.5]), "probabilities that are none"),
    "a token without a chance": (_probs([0.0, 1.0], [0.5, 0.5]), "probabilities that are none"),
    "chances of too few words": (Draft(torch.arange(2), probs=torch.full((2, 2), 0.5)), "another shape"),
    "chances of one token": (Draft(torch.arange(2), probs=torch.full((WORDS,), 1 / WORDS)), "another shape"),
}


@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("fault", list(DRAFTS))
def test_a_draft_that_is_none_is_told_once_and_the_text_is_the_plain_one(fault: str, rule: str) -> None:
    draft, words = DRAFTS[fault]
    plain = toys.answer(ChatCache(toys.target()), PROMPT[:7], limit=6)
    notes: list[str] = []
    guarded = toys.guard(Proposes(draft), notes=notes)
    got = toys.answer(ChatCache(toys.target()), PROMPT[:7], guarded, limit=6, rule=rule)
    assert (got.token_ids, got.proposed) == (plain.token_ids, 0)
    assert guarded.failed and len(notes) == 1 and re.search(words, notes[0])


# ---------------------------------------------------------------------------------------------------- the chat


class Chat:
    """An engine, its model, and what it says beside the text."""

    def __init__(self, folder: Path) -> None:
        self.engine, self.notices = Engine(), list[str]()
        self.choice = ModelChoice(model=str(folder), dtype="fp32", device="cpu")

    def ask(self, drafter: DrafterChoice, control: toys.Still | None = None, *, lenient: bool = False) -> Report:
        request = Generate(
            1,
            self.choice,
            messages=[Message("user", "abcabcabc")],
            sampling=Sampling(temperature=0, max_tokens=10),
            drafter=drafter,
            lenient=lenient,
        )
        return self.engine.generate(request, self._hear, control or toys.Still())

    def _hear(self, event: object) -> None:
        if isinstance(event, Notice):
            self.notices.append(event.text)


def spoil(name: str, folder: Path) -> Path:
    """A fault that shows when the weights are read, and not before."""
    file = folder / GOODS[name].weights
    whole = load_file(file)
    key = next(key for key in whole if key.startswith(GOODS[name].own) and whole[key].is_floating_point())
    file.unlink()
    save_file({**whole, key: whole[key].to(torch.int8)}, file)
    return folder


@pytest.mark.parametrize("name", [name for name in GOODS if name != "assistant"])
def test_a_bad_drafter_in_a_chat(name: str, made: dict[str, Path], tmp_path: Path) -> None:
    """Asked for from the start it is refused before any work, or told where the answer matters more, as it is within one."""
    chat = Chat(toys.checkpoint(tmp_path / "model"))
    plain = chat.ask(DrafterChoice(name="none"))
    bad = spoil(name, shutil.copytree(made[name], tmp_path / "drafter"))
    choice = DrafterChoice(name=GOODS[name].method, weights=str(bad), tokens=3)
    with pytest.raises(OutriderError, match="whole numbers") as caught:
        chat.ask(choice)
    assert caught.value.hint
    control = toys.Still({3: choice})
    assert chat.ask(DrafterChoice(name="none"), control).token_ids == plain.token_ids
    assert [str(error) for _, error in control.answers] == [caught.value.message]
    assert chat.ask(DrafterChoice(name="none")).token_ids == plain.token_ids
    assert chat.notices == []
    for _ in range(2):  # as the chat asks: told once, and answered undrafted
        report = chat.ask(choice, lenient=True)
        assert report.token_ids == plain.token_ids and report.drafters == {"none": report.passes}
    assert chat.notices == [f"{caught.value.message} Going on without it."]


@pytest.mark.parametrize("name", ["eagle3", "medusa"])
def test_bad_weights_beside_the_model_do_not_stop_a_chat(name: str, made: dict[str, Path], tmp_path: Path) -> None:
    """Nobody asked for them: told once, however many messages follow, and what needs no weights still drafts."""
    model = toys.checkpoint(tmp_path / "model", layers=12)
    chat = Chat(model)
    shutil.copytree(spoil(name, shutil.copytree(made[name], tmp_path / "drafter")), model / "drafter")
    plain = chat.ask(DrafterChoice(name="none"))
    for _ in range(2):
        report = chat.ask(DrafterChoice(name="auto"))
        assert report.token_ids == plain.token_ids
        assert GOODS[name].method not in report.drafters
    assert len(chat.notices) == 1 and re.search("whole numbers.* Going on without it", chat.notices[0])
    drafters = chat.engine.model.cache.drafters if chat.engine.model is not None else ()
    assert {drafter.name for drafter in drafters} == {"prompt_lookup", "suffix"}


# ---------------------------------------------------------------------------------------------------- a corpus


@pytest.mark.parametrize("ending", [*WEIGHTS, ".SafeTensors"])
def test_weights_are_no_corpus(ending: str, model: TargetModel, tmp_path: Path) -> None:
    """Not even where such a file happens to be text, as a pointer that Git left there is."""
    file = tmp_path / f"model{ending}"
    file.write_text("version https://git-lfs")
    with pytest.raises(OutriderError, match=f"its corpus is a text file, and model{ending} holds weights"):
        registry.build("suffix", model, {"weights": str(file)})
    assert Suffix().check(model.info, str(file)).weights == str(file)
