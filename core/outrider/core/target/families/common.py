"""What most readers share: rope in both published forms, window patterns, plain attention and MLP."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from outrider.core.errors import ModelError
from outrider.core.target.spec import Activation, AttentionSpec, DenseSpec, LayerSpec, RopeSpec, TargetSpec

Config = Mapping[str, Any]

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}

_SIZES = ("hidden_size", "num_attention_heads", "num_hidden_layers")  # at least 1
_COUNTS = (
    "vocab_size",
    "intermediate_size",
    "num_key_value_heads",
    "head_dim",
    "sliding_window",
    "max_position_embeddings",
)
_MOST = {"num_hidden_layers": 1 << 12}  # far more than any model has; of all others 1 << 26
_REALS = ("rms_norm_eps", "rope_theta")
AGAIN = "Download it again, whole."


@contextmanager
def usable(config: Config, origin: str, hint: str = AGAIN) -> Iterator[None]:
    """Around the reading of a config: whatever is wrong with it is told as a ModelError that begins with `origin`."""
    for key in (*_SIZES, *_COUNTS, *_REALS):
        if not _usable(key, config.get(key), key in config):
            raise ModelError(f"{origin} gives no usable {key} ({config[key]!r:.40}).", hint)
    try:
        yield
    except KeyError as error:
        raise ModelError(f"{origin} cannot be used: it has no usable {error.args[0]!r}.", hint) from error
    except (TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        raise ModelError(f"{origin} cannot be used: one of its settings is of the wrong kind.", hint) from error


def _usable(key: str, value: object, there: bool) -> bool:
    """Whether a size is one; what is not there is left to the reader."""
    if value is None:
        return not there or key not in _SIZES
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if key in _REALS:
        return math.isfinite(value) and value >= 0
    return isinstance(value, int) and (key in _SIZES) <= value <= _MOST.get(key, 1 << 26)


def frozen(value: Any) -> Any:
    """Lists as tuples, so that settings can be compared and hashed."""
    return tuple(frozen(item) for item in value) if isinstance(value, list | tuple) else value


def rope(config: Config, head_dim: int, kind: str = "full_attention", *, interleaved: bool = False) -> RopeSpec:
    """Rope of one kind of layer, from `rope_parameters` (new, flat or by kind) or `rope_theta` + `rope_scaling` (published)."""
    told = config.get("rope_parameters")
    if told:
        settings = dict(told[kind] if isinstance(told.get(kind), Mapping) else told)
    else:
        settings = {"rope_theta": config.get("rope_theta", 10000.0), **(config.get("rope_scaling") or {})}
        for key in ("partial_rotary_factor", "original_max_position_embeddings"):
            if key in config and (key == "partial_rotary_factor" or config.get("rope_scaling")):
                settings[key] = config[key]  # phi3: the outer one wins
    name = settings.pop("rope_type", None) or settings.get("type") or "default"
    settings.pop("type", None)
    if name in ("su", "mrope"):
        name = {"su": "longrope", "mrope": "default"}[name]
    theta = float(settings.pop("rope_theta", None) or 10000.0)
    if not isinstance(name, str) or not 0 < theta < math.inf:
        raise ValueError(f"no rope: {name!r}, {theta}")
    share = 1.0 if name == "proportional" else settings.pop("partial_rotary_factor", None) or 1.0
    divisors = config.get("rope_freqs")
    return RopeSpec(
        theta,
        int(head_dim * share),
        name,
        tuple(sorted((key, frozen(value)) for key, value in settings.items())),
        tuple(map(float, divisors)) if divisors else None,
        interleaved,
    )


def head_dim(config: Config) -> int:
    """Size of a head; not always width over heads."""
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def attention(config: Config, spec_rope: RopeSpec | None = None, **more: Any) -> AttentionSpec:
    """Plain attention as the config says, with what a family changes."""
    size = more.pop("head_dim", None) or head_dim(config)
    heads = config["num_attention_heads"]
    settings: dict[str, Any] = {
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": size,
        "rope": spec_rope if spec_rope is not None or "rope" in more else rope(config, size),
        "scale": size**-0.5,
    }
    return AttentionSpec(**{**settings, **more})


def activation(config: Config) -> Activation:
    """The MLP's activation."""
    name = config.get("hidden_act") or config.get("hidden_activation") or "silu"
    return ACTIVATIONS[name]


def dense(config: Config, **more: Any) -> DenseSpec:
    """The MLP."""
    if config["intermediate_size"] is None:
        raise KeyError("intermediate_size")
    return DenseSpec(**{"width": config["intermediate_size"], "activation": activation(config), **more})


def kinds(config: Config, every: int | None = None, *, slid: str = "sliding_attention") -> list[str]:
    """The kind of each layer: `layer_types`, else every `every`-th full and the others `slid`, else all full."""
    told = config.get("layer_types")
    count = config["num_hidden_layers"]
    if told:
        return list(told[:count])
    if every is None:
        return ["full_attention"] * count
    return ["full_attention" if (index + 1) % every == 0 else slid for index in range(count)]


def target(config: Config, family: str, layers: list[LayerSpec], **more: Any) -> TargetSpec:
    """The whole spec."""
    settings: dict[str, Any] = {
        "family": family,
        "width": config["hidden_size"],
        "vocab": config["vocab_size"],
        "context": config.get("max_position_embeddings") or 2048,
        "eps": 1e-6 if config.get("rms_norm_eps") is None else config["rms_norm_eps"],
        "tied": bool(config.get("tie_word_embeddings", False)),
    }
    return TargetSpec(**{**settings, **more}, layers=tuple(layers))
