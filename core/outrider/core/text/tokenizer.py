"""Text to token ids and back. Special tokens in the text are recognised; none is added unless asked for."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import tokenizers

from outrider.core.errors import BrokenFileError, ModelError
from outrider.core.text import metadata
from outrider.core.text.files import TokenizerFiles, fingerprint, trimmed, vocabulary
from outrider.core.text.pieces import Pieces
from outrider.core.text.rebuild import rebuild
from outrider.core.text.template import ChatTemplate
from outrider.core.text.vocabulary import NAMES, Vocabulary, cut

if TYPE_CHECKING:
    from outrider.core.weights.checkpoint import Checkpoint

# Control tokens that end an answer, whatever the config says.
_STOPS = set(
    [
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<turn|>",
        "<|eom_id|>",
        "</s>",
        "[EOS]",
        "<｜end▁of▁sentence｜>",
        "<|tool_response>",
    ]
)


class Tokenizer:
    """The tokenizer of one checkpoint. Raises ModelError, BrokenFileError if there is none or it cannot be read.

    Every id that `encode` gives has an embedding: control and user-defined tokens beyond the model's are left out, so that
    their text is ordinary text; ordinary tokens beyond it are an error.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        self._files = files
        self._inner, found = _inner(files)
        added = self._inner.get_added_tokens_decoder()
        self.special: frozenset[int] = frozenset(i for i, token in added.items() if token.special)
        """Ids of control tokens."""
        self._pieces = Pieces(self._inner, frozenset(added), files.origin)
        self._adds_bos = found.adds_bos if found is not None else None
        self.tokens: Mapping[str, str] = _named_tokens(files, self._inner, found)
        """Strings of the special tokens that have a role, by the name that templates use (`bos_token`, …)."""
        self.bos_token = self.tokens.get("bos_token")
        self.eos_token = self.tokens.get("eos_token")
        self.bos_id = self.token_id(self.bos_token) if self.bos_token else None
        self.eos_ids: frozenset[int] = _eos_ids(files, self)
        """Ids that end an answer."""

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Tokenizer:
        """The tokenizer that a checkpoint brings along."""
        return cls(checkpoint.text())

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id; the model's output may have more rows."""
        return _top(self._inner) + 1

    @cached_property
    def fingerprint(self) -> str:
        """Equal for tokenizers that share their token ids."""
        return fingerprint(self._files)

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The chat template, None if there is none. Raises ModelError if it cannot be compiled."""
        source = _template_source(self._files)
        return ChatTemplate(source, self.tokens) if source else None

    def encode(self, text: str, bos: bool = False) -> list[int]:
        """Ids of `text`; with `bos` the bos token comes first, unless the text brings it itself."""
        ids = list(self._inner.encode(_whole(text), add_special_tokens=False).ids)
        if bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def encode_raw(self, text: str) -> list[int]:
        """Ids of a text that no template has dressed, with the bos token where the model was trained so."""
        return self.encode(text, bos=self.adds_bos)

    @cached_property
    def adds_bos(self) -> bool:
        """Whether raw text begins with the bos token."""
        if self._files.metadata:
            return metadata.adds_bos(self._files.metadata)
        told = self._files.settings.get("add_bos_token")
        if isinstance(told, bool):
            return told
        if self._adds_bos is not None:
            return self._adds_bos
        return self._inner.encode("", add_special_tokens=True).ids[:1] == [self.bos_id]

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD. Control tokens are left out or kept."""
        data = b"".join(self.token_bytes(i) for i in ids if not (skip_special and i in self.special))
        return self.strip(data.decode("utf-8", "replace"))

    def to_json(self) -> str:
        """The whole tokenizer in the form of a tokenizer.json."""
        return self._inner.to_str()

    def token_bytes(self, token: int) -> bytes:
        """Bytes that a token stands for, before `strip`; none for an id that no token has."""
        return self._pieces[token]

    def token_id(self, text: str) -> int | None:
        """Id of the token written `text`."""
        return self._inner.token_to_id(text)

    @property
    def leading_spaces(self) -> int:
        """How many spaces in front of a decoded text belong to the tokenizer and are dropped: 0 or 1."""
        return self._pieces.leading_spaces

    def strip(self, text: str) -> str:
        """`text` without the spaces in front that belong to the tokenizer."""
        for _ in range(self.leading_spaces):
            text = text.removeprefix(" ")
        return text


def _whole(text: str) -> str:
    # A lone surrogate cannot be encoded; it can come from a terminal or a file name.
    return text if text.isascii() else codecs.encode(text, "utf-8", "replace").decode("utf-8")


def _inner(files: TokenizerFiles) -> tuple[tokenizers.Tokenizer, Vocabulary | None]:
    if files.tokenizer is None:
        found = cut(vocabulary(files), files.rows)
        inner = rebuild(found)
    else:
        found = None
        try:
            inner = tokenizers.Tokenizer.from_buffer(trimmed(files.tokenizer, files.rows))
        except BaseException as error:  # the library panics on some files, and its panics are no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise BrokenFileError(f"{files.origin}: tokenizer.json cannot be read ({error}).") from error
        inner.no_truncation()
        inner.no_padding()
    if files.rows is not None and (top := _top(inner)) >= files.rows:
        raise ModelError(
            f"The tokenizer of {files.origin} knows the token id {top}, but the model only ids below {files.rows}.",
            "The tokenizer belongs to another model; take the files that were published with this one.",
        )
    return inner, found


def _top(inner: tokenizers.Tokenizer) -> int:
    return max(inner.get_vocab(with_added_tokens=True).values(), default=-1)


def _named_tokens(files: TokenizerFiles, inner: tokenizers.Tokenizer, found: Vocabulary | None) -> dict[str, str]:
    names = dict(metadata.named(files.metadata, inner.id_to_token) if found is None else found.named)
    for name in NAMES:
        value = files.settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            names[name] = value
    return names


def _eos_ids(files: TokenizerFiles, tokenizer: Tokenizer) -> frozenset[int]:
    found: set[int] = set()
    inner = files.config.get("text_config")
    for source in (files.config, inner if isinstance(inner, dict) else {}, files.generation):
        value = source.get("eos_token_id")
        found.update(i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int))
    for key in ("eos", "eot", "eom"):
        value = files.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(value, int):
            found.add(value)
    last = tokenizer.token_id(tokenizer.eos_token) if tokenizer.eos_token else None
    if last is not None:
        found.add(last)
    stops = {text: i for text in _STOPS if (i := tokenizer.token_id(text)) in tokenizer.special}
    if "<|return|>" in stops and "<|call|>" in stops:
        stops.pop("<|end|>", None)  # ends a channel there, not the answer
    if "<turn|>" in stops:
        stops.pop("</s>", None)  # ordinary text there
    found.update(i for i in stops.values() if i is not None)
    return frozenset(i for i in found if i >= 0)


def _template_source(files: TokenizerFiles) -> str | None:
    if files.template:
        return files.template
    stored: Any = files.settings.get("chat_template")
    if isinstance(stored, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in stored if isinstance(entry, dict)}
        stored = named.get("default")
    return stored if isinstance(stored, str) and stored else None
