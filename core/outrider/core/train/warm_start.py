"""Beginning with a drafter that is there already, to train it on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from outrider.core.base.errors import ModelError, UsageError
from outrider.core.model.families.spec import AttentionSpec, RopeSpec

from .draft_vocabulary import Words
from .teacher import Teacher

OPTIONS = "Give the options that it was made with: --option NAME=VALUE."


def put(origin: str, parts: Mapping[str, Tensor], read: Callable[[str], Tensor | None]) -> None:
    """Fill `parts`, named as the file of `origin` names them.

    Raises ModelError for what is not there, UsageError for another shape.
    """
    for name, part in parts.items():
        tensor = read(name)
        if tensor is None:
            raise ModelError(f"{origin} has no tensor {name}.", "Name another drafter to go on from.")
        if tensor.shape != part.shape:
            theirs, ours = ("x".join(map(str, shape)) for shape in (tensor.shape, part.shape))
            raise UsageError(f"{origin}: {name} is {theirs}, with these options it would be {ours}.", OPTIONS)
        with torch.no_grad():
            part.copy_(tensor)


def same(origin: str, told: Mapping[str, tuple[object, object]]) -> None:
    """Raises UsageError if something of theirs is not as the options make it; `told`: theirs and ours, by option."""
    for name, (theirs, ours) in told.items():
        if theirs != ours:
            raise UsageError(f"{origin} has {name}={theirs}, and these options say {ours}.", OPTIONS)


def attention(origin: str, ours: AttentionSpec, theirs: object) -> AttentionSpec:
    """Attention of a drafter that is there, whose rope is kept. Raises ModelError if it is not of the kind of a fresh one."""
    rope = theirs.rope if isinstance(theirs, AttentionSpec) else None
    made = ours if rope is None else replace(ours, rope=RopeSpec(rope.theta, ours.head_dim))
    if made != theirs:
        raise refused(origin, "attention of another kind than a fresh one for this model")
    return made


def refused(origin: str, what: str) -> ModelError:
    """For a drafter of a kind that is read and not trained."""
    return ModelError(f"{origin} has {what}, which is not trained here.", "Name another drafter to go on from.")


def words_of(teacher: Teacher, ids: Tensor | None, rows: Tensor | None, *, learnt: bool) -> Words:
    """The head of a drafter with the words `ids` (None: all) and output rows [n, d] of its own (None: the target's).

    Rows of its own go on being trained.
    """
    words = torch.arange(teacher.info.vocab) if ids is None else ids
    made = Words(teacher, words, learnt=learnt or (rows is not None and not tied(teacher, words, rows)))
    if rows is not None and made.learnt:
        with torch.no_grad():
            made.rows.copy_(rows)
    return made


def tied(teacher: Teacher, words: Tensor, rows: Tensor) -> bool:
    """Whether output rows [n, d] are the target's, as 16 bits hold them."""
    return torch.equal(rows.to(torch.bfloat16), teacher.output(words).cpu().to(torch.bfloat16))
