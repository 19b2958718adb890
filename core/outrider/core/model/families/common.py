"""What most readers share: rope in both published forms, window patterns, plain attention and MLP."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from outrider.core.formats.config import LAYERS, ConfigReader, divides

from .spec import Activation, AttentionSpec, DenseSpec, LayerSpec, RopeSpec, TargetSpec

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
PLAIN = ("full_attention", "sliding_attention")  # kinds of layers that most families have
HEADS, HEAD = 1 << 14, 1 << 14  # most heads, and most dims of one
EXPERTS = 1 << 12
KERNEL = 1 << 8
ROPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional")
_OTHER_ROPES = {"su": "longrope", "mrope": "default"}
_USUAL = ("intermediate_size", "num_key_value_heads", "head_dim", "sliding_window")
_POSITIONS = "original_max_position_embeddings"


def layer_count(config: ConfigReader) -> int:
    """How many blocks there are."""
    return config.integer("num_hidden_layers", 1, LAYERS)


def optional_factor(config: ConfigReader, key: str) -> float | None:
    """A factor, or None where the config has none."""
    return config.factor(key) if config.has(key) else None


# ------------------------------------------------------------------ rope


def rope(config: ConfigReader, head_dim: int, kind: str = "full_attention", *, interleaved: bool = False) -> RopeSpec:
    """Rope of one kind of layer, from `rope_parameters` (new, flat or by kind) or `rope_theta` + `rope_scaling` (published)."""
    table = rope_table(config, kind)
    name = table.first("rope_type", "type")
    scaling = table.word(name, (*ROPES, *_OTHER_ROPES), "default")
    scaling = _OTHER_ROPES.get(scaling, scaling)
    theta = table.number("rope_theta", 2.0, default=10000.0)
    share, width = 1.0, head_dim
    if head_dim % 2:
        table.fail(f"gives heads of {head_dim} dims, which cannot turn in pairs (head_dim, or hidden_size over heads)")
    if scaling != "proportional":
        share = table.number("partial_rotary_factor", 1e-6, 1.0, 1.0)
        width = int(head_dim * share)
        if width < 2 or width % 2:
            table.wrong(
                "partial_rotary_factor", f"of heads of {head_dim}, {width} dims would turn; it must be an even number"
            )
    divisors = config.numbers("rope_freqs", 1e-30, 1e38) if config.has("rope_freqs") else None
    return RopeSpec(
        theta,
        width,
        scaling,
        tuple(sorted(_scaling(table, scaling, width).items())),
        tuple(divisors) if divisors else None,
        interleaved,
    )


def rope_table(config: ConfigReader, kind: str = "full_attention") -> ConfigReader:
    """The settings of the rope of one kind of layer, wherever the config has them."""
    table = config.table("rope_parameters")
    if table.empty():
        return _published(config)
    if not table.has(kind) and not table.nested():
        return table.defaults(**config.values("rope_theta"))
    if not table.has(kind):
        table.wrong(kind, "there are layers of that kind")
    return table.table(kind)


def _published(config: ConfigReader) -> ConfigReader:
    """The older form, in which keys are found in two places."""
    made = config.table("rope_scaling").defaults(**config.values("rope_theta"))
    own = config.values("partial_rotary_factor", *((_POSITIONS,) if config.has("rope_scaling") else ()))
    return made.given(**own)  # phi3: the outer one wins


def _scaling(table: ConfigReader, kind: str, width: int) -> dict[str, Any]:
    """The settings that a kind of scaling has."""
    if kind in ("linear", "dynamic"):
        if kind == "dynamic" and width < 4:
            table.wrong("rope_type", "it needs heads of which at least 4 dims turn")
        return {"factor": table.factor("factor")}
    if kind == "llama3":
        return _llama3(table)
    found = _optional(table, "factor") if kind != "default" else {}
    if kind == "proportional":
        return {**found, "partial_rotary_factor": table.number("partial_rotary_factor", 0.0, 1.0, 1.0)}
    if kind in ("yarn", "longrope"):
        found |= _optional(table, "attention_factor")
        found |= {_POSITIONS: table.integer(_POSITIONS, 2)} if table.has(_POSITIONS) else {}
    if kind == "yarn":
        found |= _optional(table, "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
        found["truncate"] = table.flag("truncate", True)
    for key in ("long_factor", "short_factor") if kind == "longrope" else ():
        found[key] = tuple(table.numbers(key, 1e-6))
        if len(found[key]) != width // 2:
            table.wrong(key, f"it must have {width // 2} numbers")
    return found


def _llama3(table: ConfigReader) -> dict[str, Any]:
    low, high = table.factor("low_freq_factor"), table.factor("high_freq_factor")
    if low >= high:
        table.wrong("low_freq_factor", f"it must be below high_freq_factor, which is {high:g}")
    positions = table.integer(_POSITIONS)
    return {"factor": table.factor("factor"), "low_freq_factor": low, "high_freq_factor": high, _POSITIONS: positions}


def _optional(table: ConfigReader, *keys: str) -> dict[str, Any]:
    """Factors as far as there are; a few writers put 0 for none."""
    read = {key: table.number(key, 0.0, 1e6) for key in keys if table.has(key)}
    return {key: value for key, value in read.items() if value}


# ------------------------------------------------------------------ mixers


def head_dim(config: ConfigReader, key: str = "head_dim") -> int:
    """Size of a head; not always width over heads."""
    if config.has(key):
        return config.integer(key, 2, HEAD)
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads", 1, HEADS)
    if not 2 <= width // heads <= HEAD:
        config.wrong("num_attention_heads", f"it does not fit a hidden_size of {width}")
    return width // heads


def kv_heads(config: ConfigReader, key: str = "num_key_value_heads") -> int:
    """Heads of keys and values, as many as of queries where the config does not say."""
    heads = config.integer("num_attention_heads", 1, HEADS)
    count = config.integer(key, 1, HEADS, heads)
    divides(config, (key, count), ("num_attention_heads", heads))
    return count


def attention(config: ConfigReader, spec_rope: RopeSpec | None = None, **more: Any) -> AttentionSpec:
    """Plain attention as the config says, with what a family changes."""
    size = more.pop("head_dim", None) or head_dim(config)
    if "kv_heads" not in more:
        more["kv_heads"] = kv_heads(config)
    turned = more.pop("rope") if "rope" in more else spec_rope or rope(config, size)
    heads = config.integer("num_attention_heads", 1, HEADS)
    return AttentionSpec(**{"heads": heads, "head_dim": size, "rope": turned, "scale": size**-0.5, **more})


def biased(config: ConfigReader) -> dict[str, Any]:
    """Where `attention_bias` puts biases in most families: on all four projections."""
    bias = config.flag("attention_bias")
    return {"bias": bias, "output_bias": bias}


def activation(config: ConfigReader, *keys: str, default: str = "silu") -> Activation:
    """The MLP's activation, under the first of these keys, or of those that are usual, that is there."""
    key = config.first(*(keys or ("hidden_act", "hidden_activation")))
    name = config.word(key, default=default)
    if name not in ACTIVATIONS:
        config.fail(f"cannot be used: {key} is {name!r}, and known are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def dense(config: ConfigReader, width: int | None = None, *, bias: bool = False) -> DenseSpec:
    """The MLP."""
    return DenseSpec(config.integer("intermediate_size") if width is None else width, activation(config), bias)


def window(config: ConfigReader, kind: str = "sliding_attention") -> int:
    """Tokens that a layer of that kind sees, 0 for all."""
    return config.integer("sliding_window", 0, default=0) if kind == "sliding_attention" else 0


def kinds(
    config: ConfigReader, every: int | None = None, *, slid: str = "sliding_attention", known: Collection[str] = ()
) -> list[str]:
    """The kind of each layer: `layer_types`, else every `every`-th full and the others `slid`, else all full."""
    count = layer_count(config)
    if config.has("layer_types"):
        return config.words("layer_types", known or ("full_attention", slid), count)
    if every is None:
        return ["full_attention"] * count
    return ["full_attention" if (index + 1) % every == 0 else slid for index in range(count)]


def top_experts(config: ConfigReader, count: int, *keys: str) -> int:
    """How many of `count` experts a token goes through, under the first of the keys that is there."""
    return config.integer(config.first(*keys), 1, count)


def target(config: ConfigReader, family: str, layers: list[LayerSpec], **more: Any) -> TargetSpec:
    """The whole spec."""
    for key in _USUAL:  # also where this family, or this size of it, does not read them
        config.integer(key, 0, default=0)
    config.number("rope_theta", default=0.0)
    eps(config, "rms_norm_eps", 1e-6)
    settings: dict[str, Any] = {
        "family": family,
        "width": config.integer("hidden_size"),
        "context": config.integer("max_position_embeddings", default=2048),
    }
    if "vocab" not in more:
        settings["vocab"] = config.integer("vocab_size")
    if "eps" not in more:
        settings["eps"] = eps(config, "rms_norm_eps", 1e-6)
    if "tied" not in more:
        settings["tied"] = config.flag("tie_word_embeddings")
    return TargetSpec(**settings, **more, layers=tuple(layers))


def eps(config: ConfigReader, key: str, default: float) -> float:
    """What a norm adds to the mean square."""
    return config.number(key, 0.0, 1.0, default)
