"""Which files of a hub repository make up its model. Nothing here asks the hub or reads a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import PurePosixPath

import msgspec

from outrider.core.formats import shards, sidecar

from .catalogue import File

PREFERRED = (  # what is taken when no quantisation is named: 4 bits, then more of them, then fewer, then whole numbers
    *("Q4_K_M", "Q4_K_XL", "Q4_0", "Q4_1", "Q4_K_S", "Q4_K_L", "Q4_K", "MXFP4", "MXFP4_MOE", "IQ4_XS", "IQ4_NL", "Q4"),
    *("Q5_K_M", "Q5_K_XL", "Q5_K_S", "Q5_K_L", "Q5_K", "Q5_0", "Q5_1", "Q5"),
    *("Q6_K", "Q6_K_XL", "Q6_K_L", "Q6_K_M", "Q6_K_S", "Q6", "Q8_0", "Q8_K_XL", "Q8_K_L", "Q8"),
    *("Q3_K_XL", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q3_K", "Q3"),
    *("BF16", "F16", "FP16", "F32", "FP32", "Q2_K_XL", "Q2_K_L", "Q2_K", "Q2_K_S"),
)
_LABEL = re.compile(
    r"(?:UD-)?(?:(?:I|P?T)?Q\d(?:_[0-9A-Z]+)*|BF16|FP?(?:16|32)|(?:MX|NV)FP4(?:_[0-9A-Z]+)*)", re.IGNORECASE
)
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")
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
_HEADS = ("medusa_lm_head.pt", "hydra_lm_head.pt")  # pickles that hold heads for drafting and nothing else
_PICKLE = "pytorch_model.bin"  # a drafter's weights only where no tokenizer is beside them


class Item(File, frozen=True):
    """One file that a repository offers. `git`: its blob id there, if it has no `sha256`."""

    remote: str = ""  # its path in the repository, if that is not `name`
    git: str = ""

    @property
    def path(self) -> str:
        """Where it is in the repository."""
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


def choose(items: Iterable[Item], label: str = "", index: Sequence[str] | None = None) -> Choice:
    """The files of a model among all of a repository: safetensors, or the GGUF of a quantisation. Raises NoChoice.

    `index`: the files that its `model.safetensors.index.json` names, if that was read.
    """
    known = {item.path: item for item in items if is_plain(item.path)}
    packed = variants(known.values())
    if not label:
        try:
            files = _safetensors(known, index)
        except NoChoice:
            if not packed:
                raise
            files = []
        if files:
            return Choice(tuple(known[name] for name in files))
    if packed:
        return _quantisation(packed, label)
    if label:
        raise NoChoice(f"it has no GGUF files, so there is no {label}", "Leave the part after the colon out.")
    pickle = drafter_pickle(name for name in known if "/" not in name)
    if pickle:
        return Choice((known["config.json"], known[pickle]))
    raise _nothing(known)


def _nothing(known: Collection[str]) -> NoChoice:
    other_form = "Take the safetensors or GGUF form of this model."
    if "adapter_config.json" in known:
        return NoChoice("it is an adapter (LoRA) and no model by itself", sidecar.HINTS["adapter"])
    if any(name.endswith((".bin", ".pth", ".pt")) for name in known):
        return NoChoice("it holds pickled weights only", other_form)
    return NoChoice("it holds neither safetensors with a config.json nor a GGUF file", other_form)


def is_plain(path: str) -> bool:
    """Whether a path of a repository names a file below it, on every system."""
    parts = path.split("/")
    return not any(part.strip(".") == "" for part in parts) and not re.search(r"[\\\x00-\x1f]", path)


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


def rank(label: str) -> tuple[int, bool]:
    """Place of a quantisation in the order of preference, the least the best: a dynamic one follows the plain one."""
    plain = label.removeprefix("UD-")
    family = re.match(r"(?:Q\d_K|MXFP4)(?=_)", plain)  # of a mixture that has no place of its own
    place = plain if plain in PREFERRED or not family else family[0]
    return (PREFERRED.index(place) if place in PREFERRED else len(PREFERRED)), plain != label


def handle(path: str) -> str:
    """The path of a GGUF file without its ending and, if it is part of a split one, without its number."""
    return _SPLIT.sub("", re.sub(r"\.gguf$", "", path, flags=re.IGNORECASE))


def fit(path: str, label: str, asked: str) -> int | None:
    """How well a GGUF at `path`, whose quantisation is `label`, is what was `asked` for: 0 the best, None not at all.

    Its file, its quantisation or folder, the same quantisation as a dynamic one, or as llama.cpp takes it: a part of the path
    that `.` or `-` follows.
    """
    asked, path, label = handle(asked.casefold()), path.casefold(), label.casefold()
    plain, inside = label.removeprefix("ud-"), re.search(rf"(?<![a-z0-9]){re.escape(asked)}[.-]", path)
    tests = (
        asked in (handle(path), handle(path).rpartition("/")[2]),
        asked == label or path.startswith(f"{asked}/"),
        asked == plain,
        inside is not None,
        plain == f"{asked}_moe",
    )
    return tests.index(True) if True in tests else None


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


def _safetensors(known: Iterable[str], index: Sequence[str] | None) -> list[str]:
    names = [name for name in known if "/" not in name]
    if "config.json" not in names:
        return []
    try:
        weights = shards.weights(names, index)
    except shards.Incomplete as error:
        raise NoChoice(str(error), "Take another form of this model.") from error
    if not weights:
        return []
    tokenizer = next((group for group in _TOKENIZERS if all(name in names for name in group)), ())
    needed = index is not None and set(weights) == set(index)
    beside = [*_SETTINGS, *tokenizer, *([shards.INDEX] if needed or (index is None and len(weights) > 1) else [])]
    return [*(name for name in beside if name in names), *weights]


def _stands_alone(text: str, match: re.Match[str]) -> bool:
    before, after = text[: match.start()][-1:], text[match.end() :][:1]
    return not before.isalnum() and not (after.isalnum() or after == "_")


def variants(items: Iterable[Item]) -> list[list[Item]]:
    """GGUF files by what they are together: the parts of one in order; a split one with missing parts is none."""
    sets: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        pure = PurePosixPath(item.path)
        if not pure.name.lower().endswith(".gguf") or not handle(pure.name).strip(".") or not is_plain(item.path):
            continue
        split = _SPLIT.search(pure.stem)
        key = (handle(item.path), split[2] if split else "00001")
        sets.setdefault(key, []).append(Item(pure.name, item.bytes, item.sha256, item.path, item.git))
    return [sorted(files, key=lambda file: file.name) for (_, count), files in sets.items() if len(files) == int(count)]


def models(variants: Iterable[list[Item]], kind: Callable[[str], sidecar.Kind] = sidecar.by_name) -> list[list[Item]]:
    """The models among GGUF files; the drafters where there is nothing else. `kind`: what the file at a path is."""
    kinds = [(kind(files[0].path), files) for files in variants]
    return [files for told, files in kinds if not told] or [files for told, files in kinds if told == "drafter"]


def pick(
    variants: Sequence[list[Item]], label: str, kind: Callable[[str], sidecar.Kind] = sidecar.by_name
) -> list[Item]:
    """The GGUF that a label means, or the preferred one without a label. Raises NoChoice."""
    offered = models(variants, kind)
    if label:
        fitting = _asked(variants, offered, label)
    else:
        best = min((rank(_label(files)) for files in offered if _label(files)), default=None)
        fitting = [files for files in offered if best is None or (_label(files) and rank(_label(files)) == best)]
    whole_ones = [files for files in fitting if len(files) == 1]
    if len(whole_ones) == 1 or not label:
        fitting = whole_ones or fitting  # one file rather than a split set of the same quantisation
    if len(fitting) != 1:
        raise _refused(fitting, offered, label) if offered else _only_beside(variants)
    told = kind(fitting[0][0].path)
    if told not in ("", "drafter"):
        raise NoChoice(f"{fitting[0][0].name} is {sidecar.TITLES[told]}, not a model", sidecar.HINTS[told])
    return fitting[0]


def _quantisation(variants: Sequence[list[Item]], label: str) -> Choice:
    labels = {_label(files) for files in models(variants)} - {""}
    files = pick(variants, label)
    return Choice(tuple(files), _label(files), tuple(sorted(labels, key=lambda name: (rank(name), name))))


def _asked(variants: Iterable[list[Item]], models: list[list[Item]], label: str) -> list[list[Item]]:
    """What fits a label best. A file beside a model is meant only by its own name."""
    fits = [(fit(files[0].path, _label(files), label), files) for files in variants]
    fits = [(place, files) for place, files in fits if place == 0 or (place is not None and files in models)]
    best = min((place for place, _ in fits if place is not None), default=None)
    fitting = [files for place, files in fits if place == best]
    return [files for files in fitting if files in models] or fitting


def _refused(fitting: list[list[Item]], offered: list[list[Item]], label: str) -> NoChoice:
    """That none or several fit, with what there is and a name for one of it."""
    shown = sorted(fitting or offered, key=lambda one: (_size(one), one[0].path))
    listed = ", ".join(f"{_short(files, shown)} ({_size(files) / 1e9:.1f} GB)" for files in shown)
    if fitting:
        example = _short(fitting[0], fitting)
        example = example if "/" in example else handle(example)
        return NoChoice(f"several of its files fit: {listed}", f"Name one by its file: NAME:{example}")
    example = _short(min(offered, key=lambda files: (rank(_label(files)), files[0].path)), offered)
    return NoChoice(f"it has no {label}; there is {listed}", f"Name one of these after a colon: NAME:{example}")


def _only_beside(variants: Sequence[list[Item]]) -> NoChoice:
    kinds = sorted({sidecar.by_name(files[0].path) for files in variants})
    held = " and ".join(sidecar.TITLES[kind].partition(" ")[2] for kind in kinds)
    return NoChoice(f"all that it holds is {held}: there is no model in it", sidecar.HINTS[kinds[0]])


def _short(files: Sequence[Item], among: Iterable[Sequence[Item]]) -> str:
    """What tells a GGUF from the others: its quantisation, its file, or its path."""
    others = [other for other in among if other is not files]
    label, name = _label(files), files[0].name
    if label and label not in map(_label, others):
        return label
    return name if name not in (other[0].name for other in others) else files[0].path


def _label(files: Sequence[Item]) -> str:
    return label_of(files[0].path)


def _size(files: Sequence[Item]) -> int:
    return sum(file.bytes for file in files)
