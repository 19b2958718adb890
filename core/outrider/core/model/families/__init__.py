"""One small reader for each model family: a published config becomes a `TargetSpec`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from outrider.core.base.errors import ModelError
from outrider.core.formats.config import ConfigReader, text_config

from . import experts, gemma, hybrid, llama
from .spec import TargetSpec

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
