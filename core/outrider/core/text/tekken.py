"""tekken.json: byte-level vocabularies of Mistral, tokens by rank."""

from __future__ import annotations

import base64

import msgspec

from outrider.core.base.errors import BrokenFileError
from outrider.core.text.signs import written
from outrider.core.text.vocabulary import CONTROL, HIGHEST, NORMAL, USER, Splitting, Vocabulary

# The first control tokens of files that do not list them.
_CONTROLS = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
]
_ROLES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


class _Config(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int


class _Token(msgspec.Struct):
    rank: int
    token_bytes: str


class _Special(msgspec.Struct):
    rank: int
    token_str: str
    is_control: bool = True


class _File(msgspec.Struct):
    config: _Config
    vocab: list[_Token]
    special_tokens: list[_Special] | None = None


def read(data: bytes, origin: str) -> Vocabulary:
    """The vocabulary of a tekken.json: special tokens first, then as many others as its size says.

    Raises BrokenFileError.
    """
    name = f"{origin}: tekken.json"
    try:
        return _vocabulary(msgspec.json.decode(data, type=_File), name)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BrokenFileError(f"{name} cannot be read ({error}).") from error


def _vocabulary(file: _File, name: str) -> Vocabulary:
    first, size = file.config.default_num_special_tokens, file.config.default_vocab_size
    if not 0 <= first <= size <= HIGHEST:
        raise ValueError(f"it has {first} special tokens in a vocabulary of {size}")
    listed = file.special_tokens
    if listed is None:
        listed = [_Special(i, text) for i, text in enumerate(_CONTROLS[:first])]
    tokens = [f"<SPECIAL_{i}>" for i in range(first)]
    types = [CONTROL] * first + [NORMAL] * (size - first)
    for special in listed:
        if not 0 <= special.rank < first:
            raise ValueError(f"its special token {special.token_str!r} has the rank {special.rank}")
        tokens[special.rank] = special.token_str
        types[special.rank] = CONTROL if special.is_control else USER
    ranked = {token.rank: token.token_bytes for token in file.vocab if token.rank < size - first}
    if len(ranked) != size - first or min(ranked, default=0) < 0:
        raise ValueError(f"it has {len(ranked)} tokens in a vocabulary of {size - first}")
    tokens += [written(base64.b64decode(ranked[rank], validate=True)) for rank in range(size - first)]
    return Vocabulary(
        name,
        tokens,
        types,
        Splitting((file.config.pattern,), whole=True),
        scores=[-float(token) for token in range(size)],  # the lower the rank, the earlier two tokens are joined
        named={role: text for role, text in _ROLES.items() if text in tokens[:first]},
        adds_bos=True,
    )
