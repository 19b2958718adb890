"""Memory plans against models in memory, verdicts, and the nearest choice that fits."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import golden
import pytest
import torch

from outrider.core.base.errors import ModelError, UsageError
from outrider.core.base.protocol import ModelChoice
from outrider.core.formats.checkpoint import open_checkpoint
from outrider.core.library import memory, plan
from outrider.core.library.catalogue import Entry, Source, entries
from outrider.core.library.plan import Settings, Subject
from outrider.core.model.cache.states import CacheConfig, new_rows
from outrider.core.model.kernels.forms import WeightFormat, packs
from outrider.core.model.load import DTYPES, load_decoder
from outrider.core.model.model import MAX_DRAFT_ROWS
from outrider.core.session import loading

CPU = torch.device("cpu")
GB = 1_000_000_000
CHECKED = (
    "llama",  # nothing special
    "gemma3_nested",  # sliding layers, a tower
    "gemma4_e",  # layers that share keys and values, an extra embedding
    "gpt_oss_mxfp4",  # stored quantised
    "glm4_moe_lite",  # latents, a layer for multi-token prediction
    "qwen3_5_moe_nested",  # recurrent layers, the same under another name
    "lfm2",  # convolutions
    "nemotron_h",  # Mamba-2, blocks without a mixer
)


def real(path: Path, dtype: torch.dtype, context: int) -> tuple[int, int, int]:
    """Bytes of the weights, expanded, bytes of the states and parameters of a model in memory."""
    with closing(open_checkpoint(path)) as checkpoint:
        decoder = load_decoder(checkpoint, WeightFormat(dtype, CPU, None, "none"), context + MAX_DRAFT_ROWS)
    return decoder.weights.nbytes, decoder.new_cache(context + MAX_DRAFT_ROWS).nbytes, decoder.weights.parameters


def planned(path: Path, dtype: str, context: int) -> tuple[int, int, int]:
    with closing(open_checkpoint(path)) as checkpoint:
        subject, how = plan.of_checkpoint(checkpoint), Settings("cpu", dtype, context, "none", "none")
        states = subject.states(how)
        assert states is not None
        return subject.weights(how), states, subject.parameters


@pytest.mark.parametrize("context", [100, 600])  # 600 tokens: sliding layers keep rings
@pytest.mark.parametrize("name", CHECKED)
def test_a_plan_is_what_a_model_takes(name: str, context: int) -> None:
    folder = golden.FOLDER / name
    assert planned(folder, "fp32", context) == real(folder, torch.float32, context)


@pytest.mark.parametrize("name", ["llama", "qwen3_5", "gemma4_dense"])
def test_in_bf16_only_vectors_count_too_much(name: str) -> None:
    folder = golden.FOLDER / name
    weights, states, parameters = planned(folder, "bf16", 100)
    really, kept, there = real(folder, torch.bfloat16, 100)
    with closing(open_checkpoint(folder)) as checkpoint:
        vectors = [
            checkpoint.shape(tensor)[0] for tensor in plan.used(checkpoint) if len(checkpoint.shape(tensor)) == 1
        ]
    assert 0 <= weights - really <= 2 * sum(vectors)
    assert (states, parameters) == (kept, there)


def test_a_tiny_model_with_a_tied_head(tiny) -> None:
    path = tiny.write()
    assert planned(path, "fp32", 64) == real(path, torch.float32, 64)
    twin = planned(path, "bf16", 64)[0] - real(path, torch.bfloat16, 64)[0]
    norms = 5 * 32 * 2  # bytes: two for each layer and the last one, counted in fp32
    filled = 31 * 32 * 2  # at most, where rows come in blocks
    beside = 0 if packs(torch.bfloat16, CPU) else 2 * len(tiny.metadata["tokenizer.ggml.tokens"]) * 32
    assert 0 <= norms + beside - twin <= filled


@pytest.mark.real
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(
    ("quantize", "keep"), [("auto", "fast"), ("auto", "all"), ("none", "none"), ("int8", "fast"), ("int4", "fast")]
)
def test_quantised_forms_of_a_real_model(starter: Path, quantize: str, keep: plan.Keep, dtype: str) -> None:
    form = WeightFormat(DTYPES[dtype], CPU, {"int8": 8, "int4": 4}.get(quantize), keep)
    with closing(open_checkpoint(starter)) as checkpoint:
        weights = plan.of_checkpoint(checkpoint).weights(Settings("cpu", dtype, 64, quantize, keep))
        assert weights == pytest.approx(load_decoder(checkpoint, form, 64).weights.nbytes, rel=1e-3)


@pytest.mark.parametrize("window", [0, 1, 16, 200, 1024])
@pytest.mark.parametrize("context", [16, 100, 700, 5000])
def test_rows_are_those_that_states_keep(window: int, context: int) -> None:
    state = new_rows(CacheConfig(context + MAX_DRAFT_ROWS, torch.float32, CPU), (1, 1), window=window)
    assert plan.rows_kept(window, context) == state.parts[0].shape[0]


def test_the_module_loads_no_torch() -> None:
    code = "import sys, outrider.core.library.model_rows; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# ------------------------------------------------------------------ verdicts


def subject(weights: int = 8 * GB, states: int = 8192, family: str = "none") -> Subject:
    """A model of so many bytes in bf16 without overhead; its states take so many bytes in bf16 for each token."""

    def sized(how: Settings) -> int:
        return int(weights * plan.BITS.get(how.quantize, 8 * plan.ITEM[how.dtype]) / 16)

    def kept(how: Settings) -> int:
        return states * how.context * plan.ITEM[how.dtype] // 2

    return Subject("toy", family, weights // 2, 1 << 20, sized, kept, lambda how: 0)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch):
    """Sets what is free, on the CPU and on a GPU."""

    def offer(cpu: int | None, cuda: int | None = None) -> None:
        monkeypatch.setattr(memory, "free", lambda device: cpu if device == "cpu" else cuda)

    monkeypatch.setitem(plan.WORKING, "cpu", GB // 10)
    monkeypatch.setitem(plan.WORKING, "cuda", GB // 10)
    return offer


@pytest.mark.parametrize(
    ("device", "free", "verdict"),
    [
        ("cpu", 8_200_000_000, "fits"),
        ("cpu", 8_199_999_999, "tight"),  # working memory may push other things out
        ("cpu", 8_100_000_000, "tight"),
        ("cpu", 8_099_999_999, "no"),
        ("cuda:0", 8_200_000_000, "fits"),
        ("cuda:0", 8_199_999_999, "no"),
        ("cpu", None, ""),
    ],
)
def test_verdicts(room, device: str, free: int | None, verdict: str) -> None:
    room(free, free)
    made = plan.plan(subject(states=100_000), Settings(device, "bf16", 1000))
    assert (made.total, made.free, made.verdict) == (8_200_000_000, free, verdict)


@pytest.mark.parametrize(
    ("free", "instead"),
    [
        (10.0, "--context 65536 (about 9.2 GB)"),
        (9.0, "--context 32768 (about 8.6 GB)"),
        (8.15, "--context 2048 (about 8.1 GB)"),
        (8.0, "--quantize int8 (about 6.2 GB)"),
        (6.0, "--quantize int4 (about 4.7 GB)"),
        (4.0, "--quantize int4 --context 65536 (about 3.7 GB)"),
        (2.0, ""),
    ],
)
def test_the_nearest_choice_that_fits(room, free: float, instead: str) -> None:
    room(int(free * GB))
    assert plan.plan(subject(states=16384), Settings("cpu", "bf16", 131072)).instead == instead


def test_half_the_digits_come_before_fewer_bits(room) -> None:
    room(9 * GB)
    assert plan.plan(subject(), Settings("cpu", "fp32", 2048)).instead == "--dtype bf16 (about 8.1 GB)"
    room(5 * GB)
    assert plan.plan(subject(), Settings("cpu", "fp32", 2048)).instead == "--dtype bf16 --quantize int8 (about 4.1 GB)"
    assert plan.plan(subject(), Settings("cpu", "bf16", 2048, "int4")).verdict == "fits"


def test_main_memory_where_a_gpu_is_too_small(room) -> None:
    room(9 * GB, 2 * GB)
    assert plan.plan(subject(), Settings("cuda:0", "bf16", 2048)).instead == "--device cpu (about 8.1 GB)"


def test_a_choice_that_fits_comes_before_one_that_is_tight(room) -> None:
    room(8_020_000_000)
    assert plan.plan(subject(), Settings("cpu", "bf16", 8192)).instead == "--quantize int8 (about 4.2 GB)"


def test_a_smaller_model_of_the_family(room, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(name: str, parameters: int, family: str = "some") -> Entry:
        return Entry(name, name, family=family, parameters=parameters, context=4096, form="bf16")

    shelf = (made("large", 5 * GB), made("small", GB // 2), made("middle", GB), made("other", GB + 1, "else"))
    monkeypatch.setattr(plan.catalogue, "entries", lambda: shelf)
    room(int(2.3 * GB))
    assert plan.plan(subject(family="some"), Settings("cpu", "bf16", 2048)).instead == "--model middle (about 2.1 GB)"


def test_a_drafter_counts(room) -> None:
    room(9 * GB)
    guest = subject(GB, 0)
    made = plan.plan(subject(states=0), Settings("cpu", "bf16", 2048), guest)
    assert (made.drafter, made.total, made.verdict) == (GB, 9_100_000_000, "tight")


def test_quantised_weights_stay_packed_where_expanded_ones_do_not_fit(room) -> None:
    entry = next(entry for entry in entries() if entry.form == "mxfp4")
    model = plan.of_entry(entry)
    room(100 * GB)
    assert plan.keep(model, Settings("cpu", "bf16", 2048)) == "fast"
    assert plan.keep(model, Settings("cpu", "bf16", 2048, "none")) == "none"
    room(16 * GB)
    assert plan.keep(model, Settings("cpu", "bf16", 2048)) == "all"
    assert plan.plan(model, Settings("cpu", "bf16", 2048)).verdict == "fits"
    assert plan.plan(model, Settings("cpu", "bf16", 2048, "none")).verdict == "no"


def test_a_model_of_which_little_is_known(room) -> None:
    room(GB)
    source = (Source("hub", repo="some/toy"),)
    model = plan.of_entry(Entry("toy", "some--toy", sources=source, parameters=1_000_000, form="bf16"))
    made = plan.plan(model, Settings("cpu", "fp32", 4096))
    assert (made.weights, made.states, made.about, made.verdict) == (4_000_000, None, True, "fits")


# ------------------------------------------------------------------ refusals


def test_settings_of_a_choice() -> None:
    model = subject()
    assert plan.settle(model, ModelChoice(device="cpu", dtype="fp16")) == Settings("cpu", "fp16", 8192)
    assert plan.settle(model, ModelChoice(device="cpu", dtype="bf16", context=64, quantize="int4")).context == 64
    with pytest.raises(UsageError, match="from 16 to 4096"):
        plan.context(5000, 4096)
    assert plan.context(None, 4096) == 4096


def test_a_model_that_does_not_fit_is_refused_before_a_weight_is_read(room, tiny, monkeypatch) -> None:
    path = tiny.write()
    room(40_000)
    monkeypatch.setattr("outrider.core.model.reader.Reader.__init__", lambda *given: pytest.fail("weights were read"))
    with pytest.raises(ModelError, match=r"does not fit into the memory of cpu.* 0 MB are free") as caught:
        loading.open_model(
            ModelChoice(device="cpu", dtype="fp32"), path, lambda *event: pytest.fail("work began"), lambda: False
        )
    assert caught.value.hint == "Take a smaller model, or free some memory."


def test_the_refusal_says_what_would_fit(room) -> None:
    room(5 * GB)
    with pytest.raises(ModelError) as caught:
        plan.check(subject(), Settings("cpu", "bf16", 2048))
    assert "about 8.1 GB in bf16 (weights 8.0 GB, states 17 MB at a context of 2048 tokens)" in caught.value.message
    assert "5.0 GB are free" in caught.value.message
    assert caught.value.hint == "Try --quantize int8 (about 4.1 GB)."
