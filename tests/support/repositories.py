"""File names of repositories that people use, as public listings showed them in December 2026."""

from __future__ import annotations

from collections.abc import Sequence

TEXT = ["config.json", "tokenizer_config.json", "chat_template.jinja", "tokenizer.json"]
QWEN = [*TEXT, "vocab.json", "merges.txt", "preprocessor_config.json", "video_preprocessor_config.json"]


def numbered(pattern: str, numbers: range) -> list[str]:
    return [pattern.format(number) for number in numbers]


def shards(count: int) -> list[str]:
    return numbered(f"model-{{:05d}}-of-{count:05d}.safetensors", range(1, count + 1))


def odd(count: int) -> list[str]:
    return numbered(f"model.safetensors-{{:05d}}-of-{count:05d}.safetensors", range(1, count + 1))


def six(count: int) -> list[str]:
    return numbered(f"model-{{:05d}}-of-{count:06d}.safetensors", range(1, count + 1))


ZERO = numbered("model-{:05d}-of-00002.safetensors", range(3))
FP8 = [*numbered("layers-{}.safetensors", range(64)), "outside.safetensors", "mtp.safetensors"]
CONSOLIDATED = [f"consolidated-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
FP16 = ["model.fp16-00001-of-00002.safetensors", "model.fp16-00002-of-00002.safetensors"]
ONE = ["model.safetensors"]

SAFETENSORS: dict[str, tuple[Sequence[str], Sequence[str], bool]] = {  # weights, what lies beside them, whether there is an index
    "Qwen/Qwen3.5-0.8B": (odd(1), QWEN, True),
    "Qwen/Qwen3.5-4B": (odd(2), QWEN, True),
    "Qwen/Qwen3.5-9B": (odd(4), QWEN, True),
    "Qwen/Qwen3.5-27B": (odd(11), QWEN, True),
    "Qwen/Qwen3.5-35B-A3B": (odd(14), QWEN, True),
    "Qwen/Qwen3.6-27B": (shards(15), QWEN, True),
    "Qwen/Qwen3.6-35B-A3B": (shards(26), QWEN, True),
    "Qwen/Qwen3.8-27B": (shards(18), [*QWEN, "crc32.txt", "generation_config.json"], True),
    "Qwen/Qwen3.8-27B-FP8": (FP8, QWEN, True),
    "unsloth/Qwen3.8-27B-NVFP4": (["model.safetensors", "model_mtp.safetensors", "model_visual.safetensors"], QWEN, True),
    "a quantised copy with its MTP layer apart": ([*shards(3), "model-mtp.safetensors"], QWEN, True),
    "Qwen/Qwen3-8B": (shards(5), QWEN, True),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (shards(41), QWEN, True),
    "openai/gpt-oss-20b": (ZERO, [*TEXT, "original/model.safetensors", "metal/model.bin"], True),
    "numbers 0 and 1 of 2": (ZERO[:2], TEXT, True),
    "google/gemma-4-E4B-it": (ONE, [*TEXT, "processor_config.json"], False),
    "meta-llama/Llama-3.2-1B-Instruct": (ONE, [*TEXT, "original/consolidated.00.pth", "original/tokenizer.model"], False),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": (ONE, [*TEXT, "figures/benchmark.jpg"], False),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": (six(2), TEXT, True),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": (six(4), TEXT, True),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": (six(8), TEXT, True),
    "deepseek-ai/DeepSeek-OCR": (six(1), TEXT, True),
    "microsoft/phi-4": (shards(6), [*TEXT, "onnx/model.onnx"], True),
    "meta-models/Muse-Glimmer-30B": (shards(2), TEXT, True),
    "zai-org/GLM-4.7-Flash": (shards(48), TEXT, True),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (shards(13), [*TEXT, "modeling_nemotron_h.py"], True),
    "mistralai/Mistral-Small-3.2-24B": (shards(10), ["config.json", "tekken.json", "consolidated.safetensors"], True),
    "mistralai/Ministral-3-3B": (ONE, [*TEXT, "tekken.json", "params.json", "consolidated.safetensors"], False),
    "Mistral in both forms, of as many files": (
        shards(3), [*TEXT, *CONSOLIDATED, "consolidated.safetensors.index.json"], True),
    "LiquidAI/LFM2-1.2B": (ONE, TEXT, False),
    "a variant beside the model": (shards(2), [*TEXT, *FP16, "model.safetensors.index.fp16.json"], True),
    "a variant beside the one file": (ONE, [*TEXT, "model.fp16.safetensors", *FP16], False),
}  # fmt: skip


# ------------------------------------------------------------------------------------------------ GGUF

GB = 10**9
SIDE = {"mmproj-BF16.gguf": GB, "mmproj-F16.gguf": GB, "imatrix_unsloth.gguf": GB // 100}


def flat(stem: str, *labels: str, size: int = 16 * GB) -> dict[str, int]:
    return {f"{stem}-{label}.gguf": size for label in labels}


def parts(folder: str, stem: str, count: int = 2) -> dict[str, int]:
    return {f"{folder}/{stem}-{i:05d}-of-{count:05d}.gguf": 20 * GB for i in range(1, count + 1)}


_SMALL = ("Q3_K_M", "Q4_0", "Q4_1", "Q4_K_M", "Q4_K_S", "Q5_K_M", "Q6_K", "Q8_0", "BF16")
_UD = (
    "UD-IQ1_S",
    "UD-IQ2_XXS",
    "UD-Q2_K_XL",
    "UD-Q4_K_M",
    "UD-Q4_K_XL",
    "UD-Q6_K_L",
    "UD-Q6_K_M",
    "UD-Q8_K_L",
    "UD-Q8_K_XL",
)
GEMMA = "gemma-4-26B-A4B-it"
MTP_NOW = {
    f"mtp-{GEMMA}.gguf": GB,
    **{f"MTP/mtp-{GEMMA}-{label}.gguf": GB for label in ("Q4_0", "Q8_0", "BF16", "F16")},
}
MTP_OLD = {f"MTP/{GEMMA}-{label}-MTP.gguf": GB for label in ("Q8_0", "BF16")}
GEMMA_26 = {
    **flat(GEMMA, "UD-Q3_K_XL", "UD-Q4_K_M", "UD-Q4_K_XL", "UD-Q5_K_M", "UD-Q8_K_XL", "Q8_0"),
    **parts("BF16", f"{GEMMA}-BF16"), "mmproj-BF16.gguf": GB, "config.json": 1,
}  # fmt: skip
E4B = "gemma-4-E4B-it"
BIG = "GLM-4.6"

GGUFS: dict[str, dict[str, int]] = {
    "unsloth/Qwen3.5-9B-GGUF": flat("Qwen3.5-9B", *_SMALL, "IQ4_NL", "IQ4_XS", *_UD[:5]) | SIDE,
    "unsloth/Qwen3.8-27B-GGUF": flat("Qwen3.8-27B", "Q4_0", "Q4_1", "Q8_0", *_UD) | SIDE
    | parts("BF16", "Qwen3.8-27B-BF16") | {"MTP/mtp-Qwen3.8-27B-Q4_0.gguf": 14 * GB // 10},
    "unsloth/Qwen3.6-35B-A3B-GGUF": flat("Qwen3.6-35B-A3B", "UD-IQ4_XS", "UD-Q4_K_S", "UD-Q4_K_M", "UD-Q4_K_XL", "UD-Q5_K_M",
                                         "UD-Q6_K", "Q8_0", "MXFP4_MOE") | SIDE,
    "unsloth/gemma-4-26B-A4B-it-GGUF": GEMMA_26 | MTP_NOW,
    "unsloth/gemma-4-26B-A4B-it-GGUF, older": GEMMA_26 | MTP_OLD,
    "unsloth/gemma-4-E4B-it-GGUF": flat(E4B, *_SMALL) | {f"mtp-{E4B}.gguf": GB} | {
        f"MTP/mtp-{E4B}-{label}.gguf": GB for label in ("Q8_0", "BF16", "F16", "Q4_0")} | {f"MTP/{E4B}-Q8_0-MTP.gguf": GB},
    "unsloth/gemma-4-12B-it-qat-GGUF": flat("gemma-4-12B-it-qat", "UD-Q4_K_XL") | SIDE | {"mtp-gemma-4-12B-it-qat.gguf": GB} | {
        f"MTP/mtp-gemma-4-12B-it-qat-{label}.gguf": GB // 4 for label in ("Q4_0", "Q8_0", "BF16", "F16")},
    "ggml-org/gpt-oss-20b-GGUF": {"gpt-oss-20b-MXFP4.gguf": 12 * GB} | flat("eagle3-gpt-oss-20b", "Q8_0", "BF16", size=GB),
    "ggml-org/gpt-oss-20b-GGUF, older": {"gpt-oss-20b-mxfp4.gguf": 12 * GB},
    "ggml-org/Qwen3.6-27B-GGUF": flat("Qwen3.6-27B", "Q4_K_M", "Q8_0", "BF16") | flat("mtp-Qwen3.6-27B", "Q4_0", "Q8_0", size=GB)
    | flat("dflash-Qwen3.6-27B", "Q8_0", size=GB) | flat("mmproj-Qwen3.6-27B", "Q8_0", "BF16", size=GB),
    "ggml-org/Qwen3-8B-GGUF": flat("Qwen3-8B", "Q4_K_M", "Q8_0", "f16") | flat("dflash-Qwen3-8B", "Q8_0", size=GB),
    "ggml-org/gemma-4-E4B-it-GGUF": flat(E4B, "Q4_0", "Q4_K_M", "Q8_0") | flat(f"mtp-{E4B}", "Q4_0", "Q8_0", size=GB)
    | flat(f"mmproj-{E4B}", "Q8_0", size=GB),
    "ggml-org/gemma-3-4b-it-GGUF": flat("gemma-3-4b-it", "Q4_K_M", "Q8_0", "f16") | {"mmproj-model-f16.gguf": GB},
    "unsloth/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-GGUF": flat(
        "NVIDIA-Nemotron-3.5-Lightning-30B-A3B", "UD-IQ4_XS", "UD-IQ4_NL", "UD-Q4_K_M", "UD-Q4_K_XL", "UD-Q5_K_XL", "Q8_0"),
    "unsloth/Nemotron-3-Nano-30B-A3B-GGUF": flat("Nemotron-3-Nano-30B-A3B", "Q4_K_M", "UD-Q4_K_XL", "UD-Q8_K_XL"),
    "unsloth/Muse-Glimmer-30B-GGUF": flat("Muse-Glimmer-30B", "UD-IQ2_XXS", "UD-Q4_K_XL", "UD-Q8_K_XL")
    | {"mmproj-Muse-Glimmer-30B-BF16.gguf": 3 * GB},
    "meta-models/Muse-Glimmer-30B-GGUF": {
        "Muse-Glimmer-30B-KQuant-17GB-Q4_K_M.gguf": 17 * GB, "Muse-Glimmer-30B-KQuant-Dynamic-Q4_K_XL.gguf": 19 * GB,
        "dflash-Muse-Glimmer-30B-Q4_K_M.gguf": GB, "dflash-kquant.gguf": GB,
        "mmproj-Muse-Glimmer-30B-Q4_K_M.gguf": GB, "mmproj-kquant.gguf": GB},
    "unsloth/GLM-4.7-Flash-GGUF": flat("GLM-4.7-Flash", "UD-Q4_K_XL", "Q8_0"),
    "unsloth/Qwen3-30B-A3B-GGUF": flat("Qwen3-30B-A3B", "Q4_K_M", "UD-Q4_K_XL", "UD-IQ1_S", "UD-IQ2_M"),
    "mistralai/Ministral-3-3B-Instruct-2512-GGUF": flat("Ministral-3-3B-Instruct-2512", "Q4_K_M", "Q5_K_M", "BF16")
    | {"Ministral-3-3B-Instruct-2512-BF16-mmproj.gguf": GB},
    "a folder for each label": parts("UD-Q4_K_XL", f"{BIG}-UD-Q4_K_XL", 4) | parts("UD-Q2_K_XL", f"{BIG}-UD-Q2_K_XL", 3)
    | {f"MTP/mtp-{BIG}-shared-Q8_0.gguf": GB},
    "unsloth/Qwen3.6-27B-MTP-GGUF": flat("Qwen3.6-27B", "UD-Q4_K_XL", "Q8_0"),
    "whole models with their MTP inside": flat("Qwen3.6-27B-MTP", "Q4_K_M", "Q8_0"),
    "bartowski/Qwen_Qwen3-0.6B-GGUF": flat("Qwen_Qwen3-0.6B", "Q4_K_M", "Q8_0", "IQ4_XS"),
    "drafters alone": flat("Qwen3-8B-DFlash", "Q4_K_M", "Q8_0", size=GB),
    "a drafter that is called so": {"model-Q4_K_M.gguf": 16 * GB, "dflash-draft-Q4_K_M.gguf": GB},
    "an assistant": flat(GEMMA, "Q4_K_M", "Q8_0") | flat(f"{GEMMA}-assistant", "Q4_K_M", "Q8_0", size=GB),
    "mixtures that few know": flat("m", "Q8_0", "Q5_K_P", "Q4_K_P", "NVFP4", "IQ2_XXS"),
    "GGUF beside a stale index": {"config.json": 1, "model-00001-of-00002.safetensors": GB, **flat("m", "Q4_K_M", "Q8_0")},
    "lora inside a word": {"Flora-7B.Q4_K_M.gguf": 4 * GB, "Flora-7B.Q8_0.gguf": 8 * GB, "Flora-7B-lora-f16.gguf": GB // 10},
    "labels that few know": {"m-PTQ1_0.gguf": GB, "m-TQ3_4S.gguf": 2 * GB, "gemma-3-4b-it-qat_q4_0-it.gguf": 3 * GB},
}  # fmt: skip
