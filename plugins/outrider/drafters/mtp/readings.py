"""What the files of prediction layers leave open, so that servers read them in different ways. Loads no torch.

Sequential layers take the target's state behind its final norm and their own output behind theirs (vLLM, SGLang, transformers);
llama.cpp takes the state before the norm for some families, older vLLM the output of GLM's before it. The layers norm what they
take once more, which hides a wrong choice: it only costs accepted tokens. The positions of an assistant: see `assistant`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from outrider.core.base.errors import UsageError

CHAIN = {"state": ("normed", "raw"), "feedback": ("postnorm", "prenorm")}
ASSISTANT = {"position": ("last", "newest")}

Ways = Mapping[str, Sequence[str]]  # values of each option, the usual one first


def readings(ways: Ways) -> list[Mapping[str, object]]:
    """Options for each way that the files may be meant, first the one that is taken unless told otherwise."""
    return [dict(zip(ways, chosen, strict=True)) for chosen in product(*ways.values())]


def choices_of(options: Mapping[str, object], ways: Ways) -> dict[str, str]:
    """What options choose. Raises UsageError for a value that is none."""
    chosen = {name: str(options.get(name) or known[0]) for name, known in ways.items()}
    for name, value in chosen.items():
        if value not in ways[name]:
            raise UsageError(f"{name} {value!r} is not known.", f"Use one of: {', '.join(ways[name])}.")
    return chosen
