"""Small tokenizers built in code, published templates, the real starter."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from outrider.core.text.files import TokenizerFiles
from outrider.core.text.tokenizer import Tokenizer

TEMPLATES = Path(__file__).parents[2] / "data" / "chat_templates.tar.xz"


def byte_alphabet() -> list[str]:
    """The 256 signs of byte-level vocabularies, in byte order."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(hidden)) for byte in range(256)]


@pytest.fixture
def byte_level() -> dict[str, Any]:
    """GGUF metadata of a byte-level tokenizer: 3 control tokens, 256 bytes, a few words, one user-defined token."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_alphabet(), "ab", "Ġab", "Ġa", "abc", "<think>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 4) + [4],
        "tokenizer.ggml.merges": ["a b", "Ġ ab", "Ġ a"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


@pytest.fixture
def sentencepiece() -> dict[str, Any]:
    """GGUF metadata of a SentencePiece tokenizer: unknown, bos, eos, 256 bytes, letters and a few words with scores."""
    words = ["▁", "a", "b", "c", "h", "i", "ab", "▁a", "▁ab", "hi", "▁hi"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(words),
        "tokenizer.ggml.scores": [0.0] * 265 + [-1.0, -4.0, -3.0, -2.0, -5.0],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def build(metadata: dict[str, Any], **more: Any) -> Tokenizer:
    return Tokenizer(TokenizerFiles("toy.gguf", metadata=metadata, **more))


@pytest.fixture(name="build")
def _build() -> Any:
    return build


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of published chat templates; its README says where they are from."""
    folder = tmp_path_factory.mktemp("templates")
    with tarfile.open(TEMPLATES) as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            (folder / Path(member.name).name).write_bytes(file.read())
    return folder


@pytest.fixture(scope="session")
def starter() -> Tokenizer:
    """The tokenizer of the real starter model, from OUTRIDER_STARTER or the library."""
    from outrider.core.base.errors import ModelError
    from outrider.core.formats.checkpoint import open_checkpoint
    from outrider.core.library.library import resolve

    given = os.environ.get("OUTRIDER_STARTER")
    try:
        path = Path(given) if given else resolve("starter", download=False)
    except ModelError:
        pytest.skip("the starter model is not in the library and OUTRIDER_STARTER is not set")
    if not path.exists():
        pytest.skip(f"OUTRIDER_STARTER names {path}, which does not exist")
    checkpoint = open_checkpoint(path)
    tokenizer = Tokenizer(checkpoint.text())
    checkpoint.close()
    return tokenizer
