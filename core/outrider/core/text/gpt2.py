"""vocab.json with merges.txt: byte-level tokenizers as they were stored before there was a tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.text.splits import splitting
from outrider.core.text.vocabulary import NORMAL, UNUSED, Vocabulary, in_order, pairs

# Neither file says how text is split; the class of the tokenizer does.
_CLASSES = {
    "GPT2Tokenizer": "gpt-2",
    "CodeGenTokenizer": "gpt-2",
    "Qwen2Tokenizer": "qwen2",
    "Qwen3_5Tokenizer": "qwen35",
}
_MODELS = {"gpt2": "gpt-2"}


def read(vocab: bytes, merges: bytes, origin: str, settings: Mapping[str, Any], model_type: str) -> Vocabulary:
    """The vocabulary of the two files. Raises BrokenFileError, ModelError if nothing tells how text is split."""
    name = str(settings.get("tokenizer_class", "")).removesuffix("Fast")
    rule = splitting(_CLASSES.get(name) or _MODELS.get(model_type, ""))
    if rule is None:
        raise ModelError(
            f"{origin} has a vocab.json, but nothing that says how its tokenizer splits text.",
            "Put the tokenizer.json of the model beside it.",
        )
    try:
        ids = msgspec.json.decode(vocab, type=dict[str, int])
        lines = merges.decode("utf-8").replace("\r", "").split("\n")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BrokenFileError(f"{origin}: vocab.json or merges.txt cannot be read ({error}).") from error
    table = {token: text for text, token in ids.items()}
    if len(table) != len(ids):
        raise BrokenFileError(f"{origin}: vocab.json gives one id to several tokens.")
    file = f"{origin}: vocab.json"
    tokens = in_order(table, file)
    return Vocabulary(
        file,
        tokens,
        [NORMAL if i in table else UNUSED for i in range(len(tokens))],
        rule,
        merges=pairs(
            (line for line in lines if line and not line.startswith("#version")), ids, f"{origin}: merges.txt"
        ),
    )
