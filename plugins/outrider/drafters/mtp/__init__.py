"""Multi-token prediction: layers that were trained with the model guess the next tokens.

Three forms: sequential layers in the model's checkpoint (DeepSeek-V3, arXiv 2412.19437; Qwen, GLM, MiMo), Gemma 4's assistants,
which read the target's own keys and values, and parallel heads (Gloeckle et al., arXiv 2404.19737). What the files hold decides
which it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.core.drafting import Fit, Match, ModelInfo, Target

from .layout import ASSISTANT, HEADS, Layout, find, promised, read_settings, strange

if TYPE_CHECKING:
    from outrider.core.drafting import Drafter
    from outrider.core.drafting.files import DraftFiles
    from outrider.core.train.recipe import Recipe

__all__ = ["Mtp"]

GAIN = 1.8


class Mtp:
    """The method. Its options are for files that are read in another way than they were meant."""

    api = 1
    options: Mapping[str, str] = {
        "state": "normed or raw: the target's state as sequential layers take it",
        "feedback": "postnorm or prenorm: their own output as they take it",
        "position": "last or newest: where an assistant stands",
    }

    @property
    def recipe(self) -> Recipe:
        """How such layers are trained."""
        from .training import MtpRecipe

        return MtpRecipe()

    def matches(self, model: ModelInfo) -> Match:
        """Fits a checkpoint that holds prediction layers; waits for some otherwise, with Gemma 4 for its assistant."""
        layout = find(model.tensors, model.layers)
        if layout is not None:
            return Match(Fit.EXACT, f"{_layers(layout.count)} in the checkpoint", GAIN, _nbytes(model, layout))
        if any(name.startswith(HEADS) for name in model.tensors):
            return _heads(model, Path(model.path))
        if model.architecture.startswith("gemma4"):
            return Match(
                Fit.FAMILY, "needs the assistant of this model: --drafter-weights PATH or NAME", GAIN, ready=False
            )
        if strange(model.tensors, model.layers):
            return Match(Fit.NO, "the checkpoint holds prediction layers of a kind that is not known")
        told = promised(model.config)
        reason = "needs prediction layers trained for this model: --drafter-weights PATH or NAME"
        if told:
            reason = f"the config promises {_layers(told)}, the file lacks {'it' if told == 1 else 'them'}"
        return Match(Fit.FAMILY, reason, GAIN, ready=False)

    def check(self, model: ModelInfo, weights: str) -> Match:
        """Whether the assistant, the heads or the copy of the model at `weights` fit. Raises ModelError, BrokenFileError."""
        from outrider.core.drafting.files import open_draft

        path = Path(weights)
        if (path / "params.json").is_file():
            return _heads(model, path)
        with open_draft(path) as files:
            return _assistant(model, files) if _assists(files) else _copy(model, files)

    def readings(self, model: ModelInfo, match: Match) -> list[Mapping[str, object]]:
        """Ways in which the files may be meant; parallel heads leave nothing open. Raises as `check`."""
        from outrider.core.drafting.files import open_draft

        from .readings import ASSISTANT, CHAIN, readings

        path = Path(match.weights or model.path)
        if (path / "params.json").is_file():
            return readings({})
        with open_draft(path) as files:
            return readings(ASSISTANT if _assists(files) else CHAIN)

    def load(self, target: Target, match: Match, options: Mapping[str, object]) -> Drafter:
        """Load what `match` found. Raises ModelError, BrokenFileError, UsageError for an option that is not known."""
        from outrider.core.drafting.files import open_draft

        from . import assistant, build, parallel

        path = Path(match.weights or target.info.path)
        if (path / "params.json").is_file():
            return parallel.load(target, path)
        with open_draft(path) as files:
            return (assistant if _assists(files) else build).load(target, files, options)


def _layers(count: int) -> str:
    return "one prediction layer" if count == 1 else f"{count} prediction layers"


def _nbytes(model: ModelInfo, layout: Layout) -> int:
    """Bytes of the layers' matrices at 16 bits a weight."""
    from outrider.core.drafting.files import further_layers, layer_size

    spec = further_layers(model.config, layout.first, layout.count)
    return 2 * layout.count * (2 * spec.width**2 + layer_size(spec, -1))


def _assists(files: DraftFiles) -> bool:
    return files.holds.issuperset(ASSISTANT)


def _differs(told: Mapping[str, tuple[object, object]]) -> str:
    """What of theirs and ours is not the same, as a reason; empty if all is."""
    for what, (theirs, ours) in told.items():
        if theirs != ours:
            return f"is made for {what} {theirs}, this model has {ours}"
    return ""


def _assistant(model: ModelInfo, files: DraftFiles) -> Match:
    config, name, weights = files.config, files.name, str(files.path)
    text = config.get("text_config")
    vocab = text.get("vocab_size") if isinstance(text, Mapping) else None
    theirs = (model.tokenizer and files.tokenizer(model.vocab)) or model.tokenizer  # most come without
    reason = _differs(
        {
            "a width of": (config.get("backbone_hidden_size"), model.width),
            "a vocabulary of": (vocab, model.vocab),
            "the tokenizer": (theirs[:12], model.tokenizer[:12]),
        }
    )
    if not model.architecture.startswith("gemma4"):
        reason = f"is an assistant of Gemma 4, this model is {model.architecture}"
    if reason:
        return Match(Fit.NO, f"{name} {reason}", weights=weights)
    return Match(Fit.EXACT, f"{name} is an assistant of this model", GAIN, files.nbytes, weights)


def _copy(model: ModelInfo, files: DraftFiles) -> Match:
    """Another copy of the model, which kept its layers where the target's lost them."""
    theirs, name = files.model(), files.name
    layout = find(theirs.tensors, theirs.layers)
    reason = "holds no prediction layer" if layout is None else ""
    reason = reason or _differs(
        {
            "a width of": (theirs.width, model.width),
            "a vocabulary of": (theirs.vocab, model.vocab),
            "a number of layers of": (theirs.layers, model.layers),
            "the tokenizer": (theirs.tokenizer[:12], model.tokenizer[:12]),
        }
    )
    if reason or layout is None:
        return Match(Fit.NO, f"{name} {reason}", weights=str(files.path))
    return Match(Fit.EXACT, f"{_layers(layout.count)} of {name}", GAIN, _nbytes(theirs, layout), str(files.path))


def _heads(model: ModelInfo, path: Path) -> Match:
    settings = read_settings(path)
    trunk = settings["n_layers"] - settings["n_future_tokens"] + 1
    told = {"a width of": (settings["dim"], model.width), "a number of layers of": (trunk, model.layers)}
    if settings.get("vocab_size", -1) > 0:
        told["a vocabulary of"] = (settings["vocab_size"], model.vocab)
    reason = _differs(told) or ("has no parallel heads" if settings["n_future_tokens"] < 2 else "")
    if reason:
        return Match(Fit.NO, f"{path.name} {reason}", weights=str(path))
    count = settings["n_future_tokens"] - 1
    files = [file for form in ("*.safetensors", "consolidated*.pth") for file in path.glob(form) if file.is_file()]
    if not files:
        return Match(Fit.NO, f"{path.name} has params.json and no weights", weights=str(path))
    size = sum(file.stat().st_size for file in files) * count // settings["n_layers"]
    return Match(Fit.EXACT, f"{count} parallel heads in {path.name}", GAIN, size, str(path))
