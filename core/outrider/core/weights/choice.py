"""Which files of a hub repository make up its model. Nothing here asks the hub or reads a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

import msgspec

from outrider.core.weights.catalogue import File

PREFERRED = (  # what is taken when no quantisation is named: the usual one first, then near ones, then larger ones
    *("Q4_K_M", "Q4_0", "Q4_1", "Q5_K_M", "Q8_0", "UD-Q4_K_XL", "Q4_K_S", "Q4_K_L", "Q5_K_S", "Q5_0", "Q5_1", "Q6_K"),
    *("MXFP4", "IQ4_XS", "IQ4_NL", "Q4", "BF16", "F16", "FP16", "F32"),
)
_LABEL = re.compile(
    r"(?:UD-)?(?:I?Q\d(?:_[0-9A-Z]+)*|TQ\d_\d|BF16|FP?(?:16|32)|(?:MX|NV)FP4(?:_[0-9A-Z]+)*)", re.IGNORECASE
)
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")
_SHARD = re.compile(r"model-(\d{5})-of-(\d{5})\.safetensors")
_NO_MODEL = re.compile(r"mmproj|imatrix|lora", re.IGNORECASE)  # GGUF files that go beside a model
_SETTINGS = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "quantize_config.json",
    "quantization_config.json",
)
_TOKENIZERS = (("tokenizer.json",), ("tekken.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"))  # best first
_INDEX = "model.safetensors.index.json"
_NOT_WEIGHTS = re.compile(r"consolidated|adapter", re.IGNORECASE)
_HEADS = ("medusa_lm_head.pt", "hydra_lm_head.pt")  # pickles that hold heads for drafting and nothing else
_PICKLE = "pytorch_model.bin"  # a drafter's weights only where no tokenizer is beside them


class Item(File, frozen=True):
    """One file that a repository offers. `git`: its blob id there, if it has no `sha256`."""

    remote: str = ""  # its path in the repository, if that is not `name`
    git: str = ""

    @property
    def path(self) -> str:
        """Where it lies in the repository."""
        return self.remote or self.name


class Choice(msgspec.Struct, frozen=True):
    """The files to bring. `label`: their quantisation, if they are GGUF; `labels`: all that the repository offers."""

    items: tuple[Item, ...]
    label: str = ""
    labels: tuple[str, ...] = ()


class NoChoice(Exception):
    """A repository holds no model that could be taken; the text says why, `hint` what can be done."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint


def choose(items: Iterable[Item], label: str = "") -> Choice:
    """The files of a model among all of a repository: safetensors, or the GGUF of a quantisation. Raises NoChoice."""
    known = {item.path: item for item in items}
    packed = variants(known.values())
    if not label:
        files = _safetensors(known)
        if files:
            return Choice(tuple(known[name] for name in files))
    if packed:
        return _quantisation(packed, label)
    if label:
        raise NoChoice(f"it has no GGUF files, so there is no {label}", "Leave the part after the colon out.")
    pickle = drafter_pickle(name for name in known if "/" not in name)
    if pickle:
        return Choice((known["config.json"], known[pickle]))
    other_form = "Take the safetensors or GGUF form of this model."
    if any(name.endswith((".bin", ".pth", ".pt")) for name in known):
        raise NoChoice("it holds pickled weights only", other_form)
    raise NoChoice("it holds neither safetensors with a config.json nor a GGUF file", other_form)


def label_of(path: str) -> str:
    """The quantisation that the name of a GGUF file or its folder tells, in capitals; empty if it tells none."""
    pure = PurePosixPath(path)
    for text in (_SPLIT.sub("", pure.stem), pure.parent.name):
        found = [match[0] for match in _LABEL.finditer(text) if _stands_alone(text, match)]
        if found:
            return found[-1].upper()
    return ""


def is_label(text: str) -> bool:
    """Whether `text` has the form of a quantisation: Q4_K_M, bf16, UD-Q4_K_XL."""
    return bool(_LABEL.fullmatch(text))


def rank(label: str) -> int:
    """Place of a quantisation in the order of preference, 0 the best."""
    return PREFERRED.index(label) if label in PREFERRED else len(PREFERRED)


def whole(names: Iterable[str]) -> list[str]:
    """The weight files among the names in a folder of safetensors; empty if one is missing."""
    names = set(names)
    if "model.safetensors" in names and _INDEX not in names:
        return ["model.safetensors"]
    counts: dict[str, int] = {}
    for name in names:
        if shard := _SHARD.fullmatch(name):
            counts[shard[2]] = counts.get(shard[2], 0) + 1
    for count in sorted(counts):
        if counts[count] == int(count):
            return sorted(name for name in names if name.endswith(f"-of-{count}.safetensors"))
    if "model.safetensors" in names:
        return ["model.safetensors"]
    others = [name for name in names if name.endswith(".safetensors") and not _SHARD.fullmatch(name)]
    others = [name for name in others if not _NOT_WEIGHTS.search(name)]
    return others if len(others) == 1 else []


def drafter_pickle(names: Iterable[str]) -> str:
    """The pickled weights of a drafter among the names in a folder, "" if there are none or a safer form is there."""
    names = set(names)
    if "config.json" not in names or any(name.endswith((".safetensors", ".gguf")) for name in names):
        return ""
    heads = [name for name in _HEADS if name in names]
    if heads:
        return heads[0]
    return _PICKLE if _PICKLE in names and not has_tokenizer(names) else ""


def has_tokenizer(names: Iterable[str]) -> bool:
    """Whether one of the tokenizer forms is among the names."""
    names = set(names)
    return any(all(name in names for name in group) for group in _TOKENIZERS)


def _safetensors(known: Iterable[str]) -> list[str]:
    names = [name for name in known if "/" not in name]
    weights = whole(names)
    if not weights or "config.json" not in names:
        if "config.json" in names and any(_SHARD.fullmatch(name) for name in names):
            raise NoChoice("some of its weight files are missing", "Take another form of this model.")
        return []
    tokenizer = next((group for group in _TOKENIZERS if all(name in names for name in group)), ())
    beside = [*_SETTINGS, *tokenizer, *([_INDEX] if len(weights) > 1 else [])]
    return [*(name for name in beside if name in names), *weights]


def _stands_alone(text: str, match: re.Match[str]) -> bool:
    before, after = text[: match.start()][-1:], text[match.end() :][:1]
    return not (before.isalnum() or before == "_") and not (after.isalnum() or after == "_")


def variants(items: Iterable[Item]) -> list[list[Item]]:
    """GGUF models among files, each the files of one in order; a split one with missing parts is none."""
    sets: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        pure = PurePosixPath(item.path)
        if pure.suffix.lower() != ".gguf" or _NO_MODEL.search(pure.name) or ".." in pure.parts or "\\" in item.path:
            continue
        split = _SPLIT.search(pure.stem)
        key = (str(pure.with_name(_SPLIT.sub("", pure.stem))), split[2] if split else "00001")
        sets.setdefault(key, []).append(Item(pure.name, item.bytes, item.sha256, item.path, item.git))
    return [sorted(files, key=lambda file: file.name) for (_, count), files in sets.items() if len(files) == int(count)]


def _quantisation(variants: Sequence[list[Item]], label: str) -> Choice:
    labels = tuple(sorted({label_of(files[0].path) for files in variants} - {""}, key=lambda name: (rank(name), name)))
    if label:
        fitting = [files for files in variants if _answers(files[0], label)]
    elif len(variants) == 1:
        fitting = list(variants)
    else:
        best = labels[0] if labels else ""
        fitting = [files for files in variants if label_of(files[0].path) == best]
        whole_ones = [files for files in fitting if len(files) == 1]
        fitting = whole_ones or fitting  # one file rather than a split set of the same quantisation
    if len(fitting) == 1:
        return Choice(tuple(fitting[0]), label_of(fitting[0][0].path), labels)
    offered = ", ".join(
        _offer(files) for files in sorted(fitting or variants, key=lambda one: (_size(one), one[0].name))
    )
    example = PurePosixPath((fitting or variants)[0][0].name).stem
    if fitting:
        raise NoChoice(f"several of its files fit: {offered}", f"Name one by its file: NAME:{example}")
    first = labels[0] if labels else example
    raise NoChoice(f"it has no {label}; there is {offered}", f"Name one of these after a colon: NAME:{first}")


def _answers(first: Item, label: str) -> bool:
    """Whether a GGUF is meant by `label`: its quantisation or its file name."""
    asked, name = label.lower(), first.name.lower()
    return asked in (label_of(first.path).lower(), name, _SPLIT.sub("", name.removesuffix(".gguf")))


def _offer(files: Sequence[Item]) -> str:
    name = label_of(files[0].path) or files[0].name
    return f"{name} ({_size(files) / 1e9:.1f} GB)"


def _size(files: Sequence[Item]) -> int:
    return sum(file.bytes for file in files)
