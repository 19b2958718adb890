"""One small reader for each model family: a published config becomes a `TargetSpec`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from outrider.core.errors import ModelError
from outrider.core.target.spec import TargetSpec
from outrider.core.weights.config import ConfigReader

from . import experts, gemma, hybrid, llama

Reader = Callable[[ConfigReader], TargetSpec]

READERS: dict[str, Reader] = {
    "llama": llama.llama,
    "qwen2": llama.qwen2,
    "mimo": llama.mimo,
    "qwen3": llama.qwen3,
    "qwen3_moe": experts.qwen3_moe,
    "qwen3_5": experts.qwen3_next,
    "qwen3_5_moe": experts.qwen3_next,
    "qwen3_next": experts.qwen3_next,
    "gemma3": gemma.gemma3,
    "gemma4": gemma.gemma4,
    "gemma4_unified": gemma.gemma4,
    "gpt_oss": experts.gpt_oss,
    "mistral": llama.mistral,
    "ministral3": llama.ministral3,
    "smollm3": llama.smollm3,
    "phi3": llama.phi3,
    "glm4_moe_lite": experts.deepseek,
    "deepseek_v3": experts.deepseek,
    "glm4_moe": experts.glm4_moe,
    "glm4": llama.glm4,
    "muse_glimmer": gemma.muse_glimmer,
    "granite": llama.granite,
    "olmo2": llama.olmo,
    "olmo3": llama.olmo,
    "cohere2": llama.cohere2,
    "lfm2": llama.lfm2,
    "granitemoehybrid": hybrid.granite,
    "nemotron_h": hybrid.nemotron,
    "mimo_v2_flash": experts.mimo_v2,
}


OMITTED: dict[str, dict[str, int]] = {  # what published multimodal configs leave out where it is transformers' default
    "gemma3": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
    },
}


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text settings of a config: multimodal checkpoints nest them, may tie the head on either level, and omit some."""
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        return dict(config)
    tied = config.get("tie_word_embeddings", inner.get("tie_word_embeddings"))
    merged = {**OMITTED.get(str(config.get("model_type")), {}), **inner}
    if tied is not None:
        merged["tie_word_embeddings"] = tied
    merged.setdefault("model_type", config.get("model_type"))
    return merged


def read_spec(config: Mapping[str, Any]) -> TargetSpec:
    """The spec of a checkpoint. Raises ModelError for an architecture that is not known, or values that make no sense."""
    text = text_config(config)
    kind = str(text.get("model_type") or "")
    reader = READERS.get(kind.removesuffix("_text"))
    if reader is None:
        known = ", ".join(sorted(READERS))
        raise ModelError(
            f"The config gives a model_type whose architecture {kind[:60] or '(none given)'!r} is not known; known are: {known}.",
            "Take another checkpoint, or open an issue with the model's name and its config.json.",
        )
    return reader(ConfigReader({**text, "model_type": kind}, f"The config of this {kind} checkpoint"))
