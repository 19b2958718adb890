"""A tiny llama in a GGUF file, a library in a temporary folder."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from gguf_writer import write_gguf
from hubserver import Hub, serving

from outrider.core.library import hubget, sources

HIDDEN, LAYERS, HEADS, KV_HEADS, MIDDLE = 32, 2, 4, 2, 64

Write = Callable[..., Path]


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
    """An empty library, and a home without the folders of other tools."""
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    for name in ("HOME", "USERPROFILE", "OLLAMA_MODELS"):
        monkeypatch.setenv(name, str(tmp_path / "person"))
    for name in (
        "OUTRIDER_MODELS",
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "HF_HOME",
        "XDG_CACHE_HOME",
        "LLAMA_CACHE",
    ):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home" / "data" / "models"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, library: Path) -> Iterator[Hub]:
    """A hub without a model, and an environment in which the client asks it, without pauses."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr(sources, "RETRY_WAIT", 0.0)
    with serving(Hub({})) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        yield served


@pytest.fixture
def inside(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The same hub; what the child process does is done in this one."""
    from huggingface_hub import close_session, constants

    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(sources, "run", lambda child, job: hubget.serve(child.log.parent))
    close_session()
    yield hub
    close_session()


@pytest.fixture(scope="session")
def starter() -> Path:
    """The real starter model, from OUTRIDER_STARTER or the library."""
    from outrider.core.base.errors import ModelError
    from outrider.core.library.library import resolve

    given = os.environ.get("OUTRIDER_STARTER")
    try:
        path = Path(given) if given else resolve("starter", download=False)
    except ModelError:
        pytest.skip("the starter model is not in the library and OUTRIDER_STARTER is not set")
    if not path.exists():
        pytest.skip(f"OUTRIDER_STARTER names {path}, which does not exist")
    return path
