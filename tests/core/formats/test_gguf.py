"""The GGUF reader: what it reads, and that a damaged file never gets further than a clear error."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.formats.checkpoint import describe, open_checkpoint
from outrider.core.text.tokenizer import Tokenizer


def _floats(data: bytes) -> torch.Tensor:
    return torch.tensor(struct.unpack(f"<{len(data) // 4}f", data))


def test_names_shapes_and_config(tiny) -> None:
    checkpoint = open_checkpoint(tiny.write())
    names = checkpoint.names()
    assert len(names) == 20
    assert {"model.embed_tokens.weight", "model.norm.weight", "model.layers.1.self_attn.o_proj.weight"} <= set(names)
    assert "lm_head.weight" not in names
    assert checkpoint.shape("model.layers.0.self_attn.k_proj.weight") == (16, 32)
    assert checkpoint.shape("model.layers.0.mlp.down_proj.weight") == (32, 64)
    config = checkpoint.config
    assert config["model_type"] == "llama"
    assert config["rms_norm_eps"] == 1e-5  # not what a 32-bit number makes of it
    assert config["tie_word_embeddings"] is True
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 8)
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)
    assert checkpoint.quantisation == "fp32"
    assert checkpoint.nbytes == checkpoint.path.stat().st_size


def test_every_tensor_is_read_as_it_was_written(tiny) -> None:
    checkpoint = open_checkpoint(tiny.write())
    loaded = {name: checkpoint.load(name) for name in checkpoint.names()}
    half = checkpoint.load("model.norm.weight", torch.bfloat16)
    checkpoint.close()  # tensors outlive the file
    for stored, name in (("token_embd", "embed_tokens"), ("blk.1.ffn_down", "layers.1.mlp.down_proj")):
        shape, _, data = tiny.tensors[f"{stored}.weight"]
        assert torch.equal(loaded[f"model.{name}.weight"], _floats(data).view(shape))
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, loaded["model.norm.weight"].bfloat16())


@pytest.mark.parametrize(("name", "stored", "heads"), [("q_proj", "attn_q", 4), ("k_proj", "attn_k", 2)])
def test_rows_of_queries_and_keys_are_put_back_into_halves(tiny, name: str, stored: str, heads: int) -> None:
    weights = open_checkpoint(tiny.write()).load(f"model.layers.1.self_attn.{name}.weight")
    shape, _, data = tiny.tensors[f"blk.1.{stored}.weight"]
    rows = _floats(data).view(shape)
    size = shape[0] // heads
    for head in range(heads):
        for i in range(size // 2):  # pair (2 i, 2 i + 1) of the file is (i, i + size / 2) of the model
            assert torch.equal(weights[head * size + i], rows[head * size + 2 * i])
            assert torch.equal(weights[head * size + size // 2 + i], rows[head * size + 2 * i + 1])


def test_an_architecture_that_is_not_interleaved_keeps_its_rows(tiny) -> None:
    tiny.metadata = {key.replace("llama.", "qwen2."): value for key, value in tiny.metadata.items()}
    for row in ("q", "k", "v"):
        rows = tiny.tensors[f"blk.0.attn_{row}.weight"][0][0]
        tiny.tensors[f"blk.0.attn_{row}.bias"] = ((rows,), "F32", struct.pack(f"<{rows}f", *range(rows)))
    checkpoint = open_checkpoint(tiny.write(general__architecture="qwen2"))
    shape, _, data = tiny.tensors["blk.0.attn_q.weight"]
    assert torch.equal(checkpoint.load("model.layers.0.self_attn.q_proj.weight"), _floats(data).view(shape))
    assert torch.equal(checkpoint.load("model.layers.0.self_attn.q_proj.bias"), torch.arange(32).float())
    assert checkpoint.config["model_type"] == "qwen2"


def test_untied_head_rope_divisors_and_scaling(tiny) -> None:
    vocab = tiny.tensors["token_embd.weight"][0][0]
    tiny.tensors["output.weight"] = ((vocab, 32), "F16", b"\0" * vocab * 64)
    tiny.tensors["rope_freqs.weight"] = ((4,), "F32", struct.pack("<4f", 1, 1, 2, 8))
    checkpoint = open_checkpoint(tiny.write(llama__rope__scaling__type="linear", llama__rope__scaling__factor=4.0))
    assert "lm_head.weight" in checkpoint.names()
    assert checkpoint.config["tie_word_embeddings"] is False
    assert checkpoint.config["rope_freqs"] == [1.0, 1.0, 2.0, 8.0]
    assert checkpoint.config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert checkpoint.load("lm_head.weight").dtype == torch.float16


def test_describe_reads_the_head_only(tiny) -> None:
    model = describe(tiny.write("small model.gguf"))
    assert (model.name, model.architecture, model.width, model.layers) == ("small model", "llama", 32, 2)
    assert model.vocab == len(tiny.metadata["tokenizer.ggml.tokens"])
    assert len(model.tokenizer) == 64


def test_describing_imports_no_torch(tiny) -> None:
    code = (
        "import sys; from pathlib import Path; from outrider.core.formats.checkpoint import describe;"
        "from outrider.core.library import library; import outrider.core.text.template;"
        f"describe(Path({str(tiny.write())!r})); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], check=False).returncode == 0


def test_a_folder_with_one_file_is_that_file(tiny) -> None:
    tiny.write()
    assert open_checkpoint(tiny.folder).format == "gguf"
    tiny.write("second.gguf")
    with pytest.raises(ModelError, match=r"holds 2 GGUF files \(second.gguf, tiny.gguf\)"):
        open_checkpoint(tiny.folder)


@pytest.mark.parametrize(
    ("name", "metadata"),
    [
        ("mmproj-tiny-F16.gguf", {"general__architecture": "clip"}),
        ("mtp-tiny-Q8_0.gguf", {}),
        ("tiny-assistant-Q8_0.gguf", {}),
        ("dflash-draft-Q4_K_M.gguf", {}),
        ("eagle3-tiny.gguf", {"general__architecture": "eagle3"}),
        ("small.gguf", {"general__architecture": "dflash"}),
        ("vision.gguf", {"general__architecture": "clip"}),
        ("style.gguf", {"general__type": "adapter"}),
        ("importance.gguf", {"general__type": "imatrix"}),
    ],
)
def test_what_goes_beside_a_model_does_not_hide_it_in_a_folder(tiny, name: str, metadata: dict[str, str]) -> None:
    tiny.metadata = {"general.architecture": "llama", "general.type": None} | tiny.metadata
    model = tiny.write("Flora-7B-loraless.gguf", general__type="model")
    tiny.write(name, **metadata)
    checkpoint = open_checkpoint(tiny.folder)
    assert checkpoint.path == model
    checkpoint.close()


def test_an_index_without_its_shards_does_not_hide_a_gguf(tiny) -> None:
    tiny.write()
    for name in ("config.json", "model.safetensors.index.json"):
        (tiny.folder / name).write_text("{}")
    assert open_checkpoint(tiny.folder).format == "gguf"


@pytest.mark.parametrize(
    ("metadata", "what"),
    [
        ({"general__type": "adapter"}, r"an adapter \(LoRA\)"),
        ({"general__architecture": "clip"}, "a projector"),
        ({"general__type": "imatrix"}, "an importance matrix"),
        ({"general__architecture": "eagle3"}, "a drafter"),
    ],
)
def test_what_is_no_model_says_what_it_is(tiny, metadata: dict[str, str], what: str) -> None:
    tiny.metadata = {"general.architecture": "llama", "general.type": None} | tiny.metadata
    path = tiny.write("this.gguf", **metadata)
    for given in (path, tiny.folder):
        with pytest.raises(ModelError, match=what) as caught:
            open_checkpoint(given)
        assert caught.value.hint


def test_truncated_anywhere_it_is_a_broken_file(tiny, tmp_path: Path) -> None:
    whole = tiny.write().read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in [*range(0, len(whole), 97), len(whole) - 1]:
        cut.write_bytes(whole[:size])
        with pytest.raises(BrokenFileError) as caught:
            open_checkpoint(cut)
        assert "cut.gguf" in caught.value.message and caught.value.hint


def test_flipped_bits_in_the_head_end_in_an_error_or_a_model(tiny, tmp_path: Path) -> None:
    whole = tiny.write().read_bytes()
    head = len(whole) - sum(len(data) for _, _, data in tiny.tensors.values())
    rng = random.Random(7)
    broken = tmp_path / "flipped.gguf"
    rejected = 0
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 1, 2, 8))):
            data[rng.randrange(head)] ^= 1 << rng.randrange(8)
        broken.write_bytes(data)
        try:
            checkpoint = open_checkpoint(broken)
            for name in ("model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.weight"):
                checkpoint.load(name)
            Tokenizer(checkpoint.text())
            checkpoint.close()
        except ModelError as error:
            assert error.message
            rejected += 1
    assert rejected > 300


def test_random_bytes_behind_the_magic(tmp_path: Path) -> None:
    rng = random.Random(1)
    path = tmp_path / "noise.gguf"
    for _ in range(300):
        path.write_bytes(
            b"GGUF\3\0\0\0" + rng.choice((b"", b"\1" + b"\0" * 7 + b"\1" + b"\0" * 7)) + rng.randbytes(200)
        )
        with pytest.raises(BrokenFileError):
            open_checkpoint(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "is empty"), (b"PK\3\4 something else", "is not a GGUF file"), (b"GG", "is not a GGUF file")],
)
def test_what_is_no_gguf(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(BrokenFileError, match=message):
        open_checkpoint(path)


def test_other_versions_and_byte_orders(tiny) -> None:
    with pytest.raises(ModelError, match="has GGUF version 1"):
        open_checkpoint(tiny.write(version=1))
    with pytest.raises(ModelError, match="is big-endian"):
        open_checkpoint(tiny.write(version=3 << 24))
    assert open_checkpoint(tiny.write(version=2)).config["model_type"] == "llama"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split__count": 3}, "is one of 3 parts of a split GGUF, and its name does not say so"),
        ({"general__architecture": "mamba9"}, "architecture 'mamba9', which is not read"),
        ({"general__architecture": None}, "does not name its architecture"),
        ({"llama__expert_count": 8}, "llama with experts"),
        ({"llama__block_count": 3}, "promises 3 layers and holds 2"),
        ({"llama__embedding_length": 64}, "no embedding table of width 64"),
        ({"llama__attention__head_count": None}, "lacks llama.attention.head_count"),
        ({"llama__attention__head_count": "four"}, "has 'four' as llama.attention.head_count"),
        ({"llama__attention__head_count_kv": [1, 2]}, r"has '\[1, 2\]' as"),
        ({"llama__rope__scaling__type": "spiral"}, "scales its positions by 'spiral'"),
        ({"llama__rope__dimension_count": 16}, "has '16' as llama.rope.dimension_count"),
        ({"llama__nextn_predict_layers": 1}, "promises 1 layers and holds 2"),
        ({"llama__nextn_predict_layers": 2}, "promises 0 layers and holds 2"),
        ({"llama__attention__layer_norm_rms_epsilon": float("nan")}, "has 'nan' as"),
        ({"general__alignment": 33}, "is not a power of two"),
    ],
)
def test_metadata_that_cannot_be_used(tiny, changes: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        open_checkpoint(tiny.write(**changes))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("blk.0.attn_q_norm.weight", ((32,), "F32", b"\0" * 128), "'blk.0.attn_q_norm.weight' has no place"),
        ("blk.0.attn_q.weight", ((32, 32), 16, b"\0" * 1024), "has quantisation IQ2_XXS, which is not read"),
        ("blk.0.attn_q.weight", ((32, 32), 77, b"\0" * 1024), "has quantisation type 77"),
        ("blk.0.attn_q.weight", ((32, 31), "Q4_0", b"\0" * 576), "does not hold whole Q4_0 blocks"),
        ("blk.0.attn_q.weight", ((0, 32), "F32", b""), "does not hold whole F32 blocks"),
        ("blk.0.attn_q.weight", ((1 << 40, 1 << 20), "F32", b""), "reaches past the end"),
    ],
)
def test_tensors_that_cannot_be_used(tiny, name: str, tensor: tuple, message: str) -> None:
    tiny.tensors[name] = tensor
    with pytest.raises(ModelError, match=message):
        open_checkpoint(tiny.write())


def test_overlapping_tensors(tiny) -> None:
    path = tiny.write()
    data = bytearray(path.read_bytes())
    where = data.index(b"blk.1.ffn_up.weight") + len(b"blk.1.ffn_up.weight") + 4 + 16 + 4
    struct.pack_into("<Q", data, where, 0)
    path.write_bytes(data)
    with pytest.raises(BrokenFileError, match="overlap"):
        open_checkpoint(path)


def test_a_missing_tensor_is_named(tiny) -> None:
    checkpoint = open_checkpoint(tiny.write())
    with pytest.raises(BrokenFileError, match=r"no tensor for lm_head.weight"):
        checkpoint.load("lm_head.weight")


@pytest.mark.real
def test_the_starter(starter: Path) -> None:
    checkpoint = open_checkpoint(starter)
    assert len(checkpoint.names()) == 272
    assert checkpoint.quantisation == "Q4_1"
    assert checkpoint.config["rope_theta"] == 100000.0
    model = describe(starter)
    assert (model.architecture, model.vocab, model.width, model.layers) == ("llama", 49152, 576, 30)
    assert checkpoint.load("model.layers.0.self_attn.q_proj.weight", torch.bfloat16).shape == (576, 576)
