"""Where a checkpoint keeps its prediction layers, told by tensor names alone. Importing this module loads no torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROMISES = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers")
MODELS = ("model.", "model.language_model.", "language_model.model.")
# of the target's own, or of what the config tells; a layer's are not read
COPIES = ("embed_tokens.weight", "shared_head.head.weight", "rotary_emb.inv_freq")
ASSISTANT = ("pre_projection.weight", "post_projection.weight")  # what an assistant of Gemma 4 is told by

HEADS = "extra_heads."  # what the names of parallel heads begin with, alone or in a model's own file
META = {  # a layer's parts as Meta names them
    "attention.wq.weight": "self_attn.q_proj.weight",
    "attention.wk.weight": "self_attn.k_proj.weight",
    "attention.wv.weight": "self_attn.v_proj.weight",
    "attention.wo.weight": "self_attn.o_proj.weight",
    "feed_forward.w1.weight": "mlp.gate_proj.weight",
    "feed_forward.w2.weight": "mlp.down_proj.weight",
    "feed_forward.w3.weight": "mlp.up_proj.weight",
    "attention_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
}
_SIZES = ("dim", "n_layers", "n_heads", "n_future_tokens")


@dataclass(frozen=True, slots=True)
class Layout:
    """Names below `prefix`; `{}` is the number of the layer. The blocks are `layers.{first}` and those after it."""

    prefix: str
    first: int
    count: int
    embed_norm: str
    hidden_norm: str
    mix: str
    out_norm: str
    hidden_first: bool = False  # the state comes before the embedding

    def owns(self, name: str) -> bool:
        """Whether a tensor belongs to these layers."""
        below = name.removeprefix(self.prefix)
        if not name.startswith(self.prefix):
            return False
        if self.prefix not in MODELS:
            return True
        return any(below.startswith(f"layers.{self.first + index}.") for index in range(self.count))


def _qwen(prefix: str, first: int, count: int) -> Layout:
    """Qwen3-Next and later: the ends are shared by all layers."""
    return Layout(prefix, first, count, "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")


def deepseek(prefix: str, first: int, count: int) -> Layout:
    """DeepSeek-V3 and GLM: further layers of the model."""
    at = "layers.{}."
    return Layout(prefix, first, count, f"{at}enorm", f"{at}hnorm", f"{at}eh_proj", f"{at}shared_head.norm")


def _mimo(prefix: str, first: int, count: int) -> Layout:
    """MiMo-7B: `model.mtp_layers.N`."""
    at = "layers.{}."
    names = f"{at}token_layernorm", f"{at}hidden_layernorm", f"{at}input_proj", f"{at}final_layernorm"
    return Layout(prefix, first, count, *names, hidden_first=True)


def find(names: Collection[str], layers: int) -> Layout | None:
    """The prediction layers among the tensors of a model of so many layers; None if there are none of a known layout."""
    forms = [
        *((_qwen, f"{root}mtp.", 0) for root in ("", "language_model.", *MODELS)),
        *((deepseek, root, layers) for root in MODELS),
        *((_mimo, f"{root}mtp_", 0) for root in MODELS),
    ]
    for make, prefix, first in forms:
        count = 0
        while f"{prefix}layers.{first + count}.input_layernorm.weight" in names:
            count += 1
        layout = make(prefix, first, count)
        if count and f"{prefix}{layout.mix.format(first)}.weight" in names:
            return layout
    return None


def strange(names: Collection[str], layers: int) -> bool:
    """Whether there are prediction layers of a layout that `find` does not know."""
    beyond = tuple(f"{root}layers.{layers}." for root in MODELS)
    return any(name.startswith(beyond) or "mtp" in name for name in names)


def promised(config: Mapping[str, object]) -> int:
    """How many prediction layers a config tells of."""
    inner = config.get("text_config")
    for settings in (config, inner if isinstance(inner, Mapping) else {}):
        for key in PROMISES:
            value = settings.get(key)
            if isinstance(value, int) and value > 0:
                return value
    return 0


def read_settings(folder: Path) -> dict[str, Any]:
    """params.json of a model with parallel heads. Raises ModelError, BrokenFileError."""
    from outrider.core.drafting import files

    read = files.read_settings(folder / "params.json", "Download it again.")
    sizes = {key: read.integer(key) for key in _SIZES}
    told = read.values(*read.given_keys())
    return {**told, **sizes, "vocab_size": read.integer("vocab_size", -1, default=-1)}
