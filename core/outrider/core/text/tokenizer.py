"""Text to token ids and back. Special tokens in the text are recognised; none is added unless asked for."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from typing import Any

import tokenizers

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.text import growth, metadata
from outrider.core.text.files import TokenizerFiles, fingerprint, trimmed, vocabulary
from outrider.core.text.foreign import Rendered, written_out
from outrider.core.text.pieces import Pieces
from outrider.core.text.rebuild import rebuild
from outrider.core.text.template import ChatTemplate
from outrider.core.text.vocabulary import NAMES, Vocabulary, cut

_MARKER = re.compile(r"<[|｜][^<>]+[|｜]>")
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
        with _named(files.origin):
            self._inner, found = _inner(files)
            added = self._inner.get_added_tokens_decoder()
            vocabulary = self._inner.get_vocab(with_added_tokens=True)
            normaliser, decoder = (_state(step) for step in (self._inner.normalizer, self._inner.decoder))
        _check_growth(normaliser, decoder, files.origin)
        gaps = any(token.lstrip or token.rstrip for token in added.values()) or not _covers(self._inner.model)
        self._shorter = growth.SHORTER if gaps else growth.shorter(normaliser)
        self._ids = frozenset(vocabulary.values())
        _check_rows(self._ids, files)
        self.longest = max((len(text.encode("utf-8", "replace")) for text in vocabulary), default=1)
        """UTF-8 bytes of text that a token stands for at most."""
        self.special: frozenset[int] = frozenset(i for i, token in added.items() if token.special)
        """Ids of control tokens."""
        self.pieces = Pieces(self._inner, frozenset(added), files.origin)
        """Bytes that each token stands for, before `strip`."""
        self._adds_bos = found.adds_bos if found is not None else None
        self.tokens: Mapping[str, str] = _named_tokens(files, self._inner, found)
        """Strings of the special tokens that have a role, by the name that templates use (`bos_token`, …)."""
        self.bos_token = self.tokens.get("bos_token")
        self.eos_token = self.tokens.get("eos_token")
        self.bos_id = self.token_id(self.bos_token) if self.bos_token else None
        self.eos_ids: frozenset[int] = _eos_ids(files, self)
        """Ids that end an answer."""
        texts = {i: token.content for i, token in added.items()}
        self._controls = {i: text for i, text in texts.items() if i in self.special or self._structural(i, text)}
        self._plain: dict[bool, tokenizers.Tokenizer] = {}

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id; the model's output may have more rows."""
        return max(self._ids, default=-1) + 1

    @property
    def remarks(self) -> list[str]:
        """What the user should know of it."""
        return [] if self._files.tokenizer else metadata.remarks(self._files.metadata)

    def unnamed(self, rows: int) -> list[int]:
        """Ids below `rows` that no token has: padding of the model's output, and holes. Those that end an answer are never
        among them."""
        return [i for i in range(rows) if i not in self._ids and i not in self.eos_ids]

    @cached_property
    def fingerprint(self) -> str:
        """Equal for tokenizers that share their token ids."""
        return fingerprint(self._files)

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The chat template, None if there is none. Raises ModelError if it cannot be compiled."""
        source = _template_source(self._files)
        return ChatTemplate(source, self.tokens, set(self._controls.values())) if source else None

    def _structural(self, token: int, text: str) -> bool:
        """Whether an added token that is not marked as a control token is one all the same: it begins or ends texts, or the chat
        template sets turns apart by it, as DeepSeek's does by <｜User｜>."""
        written = _MARKER.fullmatch(text) is not None and text in (_template_source(self._files) or "")
        return token in self.eos_ids or token == self.bos_id or written

    def encode(self, text: str, bos: bool = False) -> list[int]:
        """Ids of `text`; with `bos` the bos token comes first, unless the text brings it itself.

        What is foreign in a rendered chat is ordinary text, however it is spelt. Raises ModelError where the tokenizer fails.
        """
        whole = _whole(text)
        with _named(self._files.origin):
            made = self._inner.encode(whole, add_special_tokens=False)
            foreign = text.foreign if isinstance(text, Rendered) else {}
            ids = self._around(whole, foreign, made) if foreign else list(made.ids)
        if bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def least(self, text: str) -> int:
        """A number of tokens that `text` has at least, known without making them: no token stands for more than `longest`
        bytes, and what the tokenizer leaves out is bounded, or taken for nine tenths of the text."""
        size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        return size // (self.longest * self._shorter)

    def encode_chat(self, text: str) -> list[int]:
        """Ids of a chat that a template has rendered. The bos token is the template's to write; of a GGUF file it is added
        where the file says so and the template leaves it out, as the programs that made the file expect."""
        return self.encode(text, bos=bool(self._files.metadata) and self.adds_bos)

    def _around(self, text: str, foreign: Mapping[str, str], made: tokenizers.Encoding) -> list[int]:
        """Ids of a text with stand-ins: `made` of it, but stretches between control tokens that hold stand-ins made anew."""
        ids: list[int] = []
        stretch: list[int] = []
        begin = 0

        def close(end: int) -> None:
            held = text[begin:end]
            anew = any(sign in held for sign in foreign)
            ids.extend(self._literal(written_out(held, foreign), first=begin == 0) if anew else stretch)
            stretch.clear()

        for token, (start, end) in zip(made.ids, made.offsets, strict=True):
            if token in self._controls and text[start:end].strip() == self._controls[token].strip():
                close(start)
                ids.append(token)
                begin = end
            else:
                stretch.append(token)
        close(len(text))
        return ids

    def _literal(self, text: str, *, first: bool) -> list[int]:
        """Ids of `text` with no control token among them; `first`: it begins the whole text."""
        if first not in self._plain:
            self._plain[first] = _without_controls(self._inner, self._controls, first=first)
        made = self._plain[first].encode(text, add_special_tokens=False)
        spelt = zip(made.ids, made.offsets, strict=True)
        if all(text[start:end] != self._controls.get(token) for token, (start, end) in spelt):
            return list(made.ids)
        # Some models have control tokens among their words: a piece that ends inside of one cannot become it.
        held = [control for control in self._controls.values() if control in text]
        cuts = sorted({at.start() + 1 for control in held for at in re.finditer(f"(?={re.escape(control)})", text)})
        pieces = [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]
        ids = [token for piece in pieces for token in self._plain[first].encode(piece, add_special_tokens=False).ids]
        return [token for token in ids if self._controls.get(token) not in held]

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
        with _named(self._files.origin):
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
        return self.pieces[token]

    def token_id(self, text: str) -> int | None:
        """Id of the token written `text`."""
        return self._inner.token_to_id(text)

    @property
    def leading_spaces(self) -> int:
        """How many spaces in front of a decoded text belong to the tokenizer and are dropped: 0 or 1."""
        return self.pieces.leading_spaces

    def strip(self, text: str) -> str:
        """`text` without the spaces in front that belong to the tokenizer."""
        for _ in range(self.leading_spaces):
            text = text.removeprefix(" ")
        return text


@contextmanager
def _named(origin: str) -> Iterator[None]:
    """A panic of the library, on some files and texts, is no Exception: it becomes a ModelError that names the file."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise ModelError(
            f"The tokenizer of {origin} fails ({' '.join(str(error).split())[:200]}).",
            "Take its files anew from where the model was published, or another form of the model.",
        ) from error


def _without_controls(inner: tokenizers.Tokenizer, controls: Collection[int], *, first: bool) -> tokenizers.Tokenizer:
    """The same tokenizer for text in which no control token counts; unless `first`, for text in the middle of another."""
    layout = json.loads(inner.to_str())
    for token in layout["added_tokens"]:
        token["special"] = token["special"] or token["id"] in controls
    if not first:
        _never_first(layout["pre_tokenizer"])
    made = tokenizers.Tokenizer.from_str(json.dumps(layout))
    made.encode_special_tokens = True
    return made


def _never_first(step: Any) -> None:
    """No space is put in front of a text by a pre-tokenizer that does so at the very beginning alone."""
    if isinstance(step, dict):
        if step.get("prepend_scheme") == "first":
            step["prepend_scheme"] = "never"
        for part in step.get("pretokenizers", ()):
            _never_first(part)


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
            with _named(files.origin):
                inner = tokenizers.Tokenizer.from_buffer(trimmed(files.tokenizer, files.rows))
        except Exception as error:
            raise BrokenFileError(f"{files.origin}: tokenizer.json cannot be read ({error}).") from error
        inner.no_truncation()
        inner.no_padding()
    return inner, found


def _state(step: Any) -> dict[str, Any]:
    """A step of a tokenizer as tokenizer.json has it."""
    return {} if step is None else json.loads(step.__getstate__())


def _covers(model: Any) -> bool:
    """Whether each character has tokens of its own, and no run of unknown ones becomes a single token."""
    return isinstance(model, tokenizers.models.BPE) and (model.unk_token is None or bool(model.byte_fallback))


def _check_growth(normaliser: dict[str, Any], decoder: dict[str, Any], origin: str) -> None:
    if (times := max(growth.longer(normaliser), growth.longer(decoder))) > growth.LONGER:
        raise ModelError(
            f"The tokenizer of {origin} would make {times:,} characters of one.",
            "Take its files anew from where the model was published.",
        )


def _check_rows(ids: Collection[int], files: TokenizerFiles) -> None:
    if files.rows is not None and (top := max(ids, default=-1)) >= files.rows:
        raise ModelError(
            f"The tokenizer of {files.origin} knows the token id {top}, but the model only ids below {files.rows}.",
            "The tokenizer belongs to another model; take the files that were published with this one.",
        )


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
        found.update(i for i in (value if isinstance(value, list) else [value]) if type(i) is int)  # true is none
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
