"""A small GGUF writer of our own, a tiny llama in it, a library in a temporary folder."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

KINDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14, "BF16": 30}
HIDDEN, LAYERS, HEADS, KV_HEADS, MIDDLE = 32, 2, 4, 2, 64

Write = Callable[..., Path]


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    """Type id and value; Python ints become uint32, floats float32."""
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _string(value)
    first = _value(value[0])
    items = b"".join(_value(item)[4:] for item in value)
    return struct.pack("<I", 9) + first[:4] + struct.pack("<Q", len(value)) + items


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[Sequence[int], str | int, bytes]],
    version: int = 3,
) -> Path:
    """A GGUF file; a tensor is its shape (slowest axis first), kind and bytes. Nothing stands behind the last byte."""
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata))
    head += b"".join(_string(key) + _value(value) for key, value in metadata.items())
    body = b""
    for name, (shape, kind, data) in tensors.items():
        body += b"\0" * (-len(body) % 32)
        head += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += struct.pack("<IQ", KINDS[kind] if isinstance(kind, str) else kind, len(body))
        body += data
    head += b"\0" * (-len(head) % 32)
    path.write_bytes(head + body)
    return path


def tiny_metadata() -> dict[str, Any]:
    """Metadata of a two-layer llama with a byte-level tokenizer."""
    signs = [chr(code) for code in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x144))]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *signs, "ab", "Ġab"]
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": MIDDLE,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": ["a b", "Ġ ab"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}",
    }


def _row(shape: Sequence[int], seed: int) -> bytes:
    count = 1
    for axis in shape:
        count *= axis
    return struct.pack(f"<{count}f", *(((seed * 7919 + i * 104729) % 2003) / 1001 - 1 for i in range(count)))


def tiny_tensors(vocab: int, tied: bool = True) -> dict[str, tuple[Sequence[int], str | int, bytes]]:
    """Float tensors of the same llama; every number is different from its neighbours."""
    kv = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, Sequence[int]] = {"token_embd.weight": (vocab, HIDDEN), "output_norm.weight": (HIDDEN,)}
    if not tied:
        shapes["output.weight"] = (vocab, HIDDEN)
    for layer in range(LAYERS):
        for name, shape in {
            "attn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (kv, HIDDEN),
            "attn_v": (kv, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (MIDDLE, HIDDEN),
            "ffn_up": (MIDDLE, HIDDEN),
            "ffn_down": (HIDDEN, MIDDLE),
        }.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
    return {name: (shape, "F32", _row(shape, i)) for i, (name, shape) in enumerate(shapes.items())}


class Tiny:
    """Writes the tiny llama, changed as a test wants; `None` removes a metadata key or a tensor."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metadata = tiny_metadata()
        self.tensors = tiny_tensors(len(self.metadata["tokenizer.ggml.tokens"]))

    def write(self, name: str = "tiny.gguf", version: int = 3, **metadata: Any) -> Path:
        """The file; keyword `llama_block_count` sets `llama.block_count` and so on for the first `_`."""
        changes = {key.replace("__", "."): value for key, value in metadata.items()}
        merged = {key: value for key, value in (self.metadata | changes).items() if value is not None}
        return write_gguf(self.folder / name, merged, self.tensors, version)


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    return Tiny(tmp_path)


@pytest.fixture
def gguf() -> Write:
    return write_gguf


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty library."""
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "data" / "models"


@pytest.fixture(scope="session")
def starter() -> Path:
    """The real starter model, from OUTRIDER_STARTER or the library."""
    from outrider.core.errors import ModelError
    from outrider.core.weights.library import resolve

    given = os.environ.get("OUTRIDER_STARTER")
    try:
        path = Path(given) if given else resolve("starter", download=False)
    except ModelError:
        pytest.skip("the starter model is not in the library and OUTRIDER_STARTER is not set")
    if not path.exists():
        pytest.skip(f"OUTRIDER_STARTER names {path}, which does not exist")
    return path
