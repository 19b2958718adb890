"""What makes a DFlash checkpoint: every published form is read as it was meant, and what does not fit is refused by name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import dflash_files as files
import pytest
import torch
import toys
from torch import Tensor

from outrider.core.base.errors import ModelError, UsageError
from outrider.core.drafting import Fit
from outrider.drafters.dflash import DFlash
from outrider.drafters.dflash.format import Plan, Sight, read_plan

MODEL = toys.target().info


class Paper:
    """A checkpoint that has a config and shapes, and no numbers."""

    path = Path("drafter")

    def __init__(self, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.config, self.shapes = dict(config), dict(shapes)

    def names(self) -> list[str]:
        return list(self.shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[name]


def plan(
    kind: str = "dflash", *, drop: tuple[str, ...] = (), nest: Mapping[str, Any] | None = None, **more: Any
) -> Plan:
    """The plan of a kind whose config has these keys changed: None takes one away."""
    config = {key: value for key, value in {**files.config(kind), **more}.items() if value is not None}
    if nest is not None:
        config["dflash_config"] = {**config.get("dflash_config", {}), **nest}
    shapes = {name: tuple(tensor.shape) for name, tensor in files.tensors(kind).items() if name not in drop}
    return read_plan(Paper(config, shapes))  # type: ignore[arg-type]


OPEN, CAUSAL = Sight(False), Sight(True, files.WINDOW)


def test_where_sliding_layers_look() -> None:
    assert plan().sights == (CAUSAL, OPEN)
    assert plan(is_causal=False).sights == (Sight(False, files.WINDOW), OPEN)
    assert plan(is_causal=True).sights == (CAUSAL, Sight(True))
    assert plan(nest={"causal": False}).sights == (Sight(False, files.WINDOW), OPEN)
    assert plan(nest={"use_swa": True, "swa_window_size": 7}).sights == (Sight(False, 7),) * 2
    assert plan(layer_types=None).sights == (OPEN, OPEN)
    assert plan(layer_types=None, use_sliding_window=True, max_window_layers=1).sights == (OPEN, CAUSAL)
    assert plan("speculators").sights == (replace(CAUSAL, reading="anchor"), OPEN)
    assert plan("speculators", sliding_window_non_causal=True).sights == (Sight(False, files.WINDOW, "anchor"), OPEN)


def test_which_states_are_read() -> None:
    assert plan().states == (1, 2)
    assert plan("speculators").states == (1, 2)  # boundary ids: one more than those of layers
    assert plan("dspark", target_layer_ids=[-1, 1]).states == (0, 2)  # -1 is the embedding
    assert plan("dspark", target_layer_ids=None, num_target_layers=36).states == (2, 34)
    nested = files.config("dflash")["dflash_config"]
    assert plan(dflash_config={"mask_token_id": nested["mask_token_id"]}, target_layer_ids=[0, 1]).states == (1, 2)


def test_which_slot_drafts_first() -> None:
    assert plan().drafts == files.BLOCK - 1
    assert plan("dspark").drafts == files.BLOCK
    assert plan("dspark", sample_from_anchor=False).drafts == files.BLOCK - 1
    assert plan("speculators").drafts == files.BLOCK - 1
    assert plan("speculators", speculators_model_type="dspark").drafts == files.BLOCK
    assert plan("dflash", markov_rank=0).drafts == files.BLOCK  # DeepSpec's DFlash
    assert plan("dflash", nest={"projector_type": "dspark"}).drafts == files.BLOCK
    assert plan("dflash2").block == files.BLOCK  # which stands in `dflash_config` alone


def test_the_rope_is_its_own_over_whole_heads() -> None:
    turns = {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.25}
    for made in (plan(rope_parameters=turns), plan(rope_theta=5e6, partial_rotary_factor=0.25)):
        rope = made.spec.layers[0].mixer.rope  # type: ignore[union-attr]
        assert rope is not None and (rope.theta, rope.width) == (5e6, files.HEAD)


def test_whose_vocabulary_counts() -> None:
    assert plan().vocab == 48
    assert plan(vocab_size=None).vocab is None
    assert plan("dspark", vocab_size=None).vocab == 48  # as many rows as the Markov table has
    layers = {**files.config("speculators")["transformer_layer_config"], "vocab_size": files.REDUCED}
    made = plan("speculators", transformer_layer_config=layers)
    assert (made.vocab, made.reduced) == (48, files.REDUCED)  # t2d has a row for each id of the target


def test_native_names_are_read() -> None:
    config = {**files.config("dflash"), "layer_types": None}
    renamed = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    shapes = {renamed.get(name, name): tuple(t.shape) for name, t in files.tensors("dflash").items()}
    assert read_plan(Paper(config, shapes)).sights == (Sight(False, files.WINDOW),) * 2  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: plan(block_size=8, nest={"block_size": 4}), "two block sizes, 8 and 4"),
        (lambda: plan(block_size=65), "a block of 65"),
        (lambda: plan(block_size=files.WINDOW + 1), "a block of 10"),
        (lambda: plan(block_size=1), "no usable block_size"),
        (lambda: plan("dspark", block_size=None), "no usable block_size"),
        (lambda: plan("dspark", mask_token_id=None), "no usable mask_token_id"),
        (lambda: plan(nest={"target_layer_ids": [0]}), r"fc takes 2 target states, target_layer_ids names \[0\]"),
        (lambda: plan("speculators", aux_hidden_state_layer_ids=None), "aux_hidden_state_layer_ids names None"),
        (lambda: plan(sliding_window=None), "no usable sliding_window"),
        (lambda: plan(layer_types=["full_attention"]), "layer_types names"),
        (lambda: plan(num_hidden_layers=1, layer_types=None), "not known: layers.1."),
        (lambda: plan(num_hidden_layers=3, layer_types=None), "no tensor layers.2."),
        (lambda: plan(intermediate_size=None), "no usable 'intermediate_size'"),
        (lambda: plan(head_dim=16), "o_proj.weight is 32x32, the config says 32x64"),
        (lambda: plan(drop=("norm.weight",)), "no tensor norm.weight"),
        (lambda: plan("dspark", markov_head_type="rnn"), "of the kind 'rnn'"),
        (lambda: plan("speculators", draft_vocab_size=19), "d2t is 20, lm_head 20x32, the config says 19"),
        (lambda: plan("speculators", drop=("lm_head.weight",)), "lm_head missing"),
        (lambda: plan(nest={"attention_sink_bias": True}), "not read .attention_sink_bias."),
        (lambda: plan("dflash2", nest={"conv_group_size": 5}), "groups of 5 channels"),
    ],
)
def test_what_contradicts_itself_is_refused(make: Callable[[], Plan], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        make()


class TestOnDisk:
    """Through `check` and `load`."""

    @staticmethod
    def folder(tmp_path: Path, kind: str = "dflash", add: Mapping[str, Tensor] | None = None, **more: Any) -> Path:
        return files.write(tmp_path / "some", {**files.config(kind), **more}, {**files.tensors(kind), **(add or {})})

    def test_a_fitting_drafter_says_what_it_is(self, tmp_path: Path) -> None:
        for kind, word in (
            ("dflash", "DFlash "),
            ("dspark", "DSpark"),
            ("dflash2", "DFlash2"),
            ("speculators", "DFlash "),
        ):
            match = DFlash().check(MODEL, str(self.folder(tmp_path, kind)))
            assert match.fit == Fit.EXACT and match.ready
            assert f"some is a {word}" in match.reason
            assert match.nbytes > 0

    def test_a_prefix_of_all_names_makes_no_difference(self, tmp_path: Path) -> None:
        weights = {f"model.{name}": tensor for name, tensor in files.tensors("dspark").items()}
        folder = files.write(tmp_path / "some", files.config("dspark"), weights)
        assert DFlash().load(toys.target(), DFlash().check(MODEL, str(folder)), {}).shape.nodes == files.BLOCK

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"width": 64}, "width 32, toy-0 has 64"),
            ({"layers": 3}, "layers 2, toy-0 has 3"),
            ({"vocab": 49}, "vocabulary 48, toy-0 has 49"),
        ],
    )
    def test_another_target_is_refused(self, tmp_path: Path, change: dict[str, int], words: str) -> None:
        folder, other = self.folder(tmp_path), replace(MODEL, **change)  # type: ignore[arg-type]
        match = DFlash().check(other, str(folder))
        assert match.fit == Fit.NO and words in match.reason
        target = toys.target()
        target.info = other
        with pytest.raises(ModelError, match=words):
            DFlash().load(target, match, {})

    def test_ids_beyond_the_target_are_refused(self, tmp_path: Path) -> None:
        match = DFlash().check(MODEL, str(self.folder(tmp_path, "dspark", mask_token_id=48)))
        assert match.fit == Fit.NO and "the mask token 48 of some is no token of toy-0" in match.reason
        match = DFlash().check(MODEL, str(self.folder(tmp_path, "speculators", aux_hidden_state_layer_ids=[1, 3])))
        assert match.fit == Fit.NO and "reads layer 3" in match.reason

    def test_another_tokenizer_is_refused(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        (folder / "tokenizer.json").write_text(toys.tokenizer_json())
        match = DFlash().check(MODEL, str(folder))
        assert match.fit == Fit.NO and "another tokenizer" in match.reason

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("prefix_gru.weight_ih_l0", "Domino"),
            ("markov_head.gate_proj.weight", "gated Markov head"),
            ("aux_hidden_norms.0.weight", "Laguna"),
        ],
    )
    def test_relatives_are_named(self, tmp_path: Path, name: str, words: str) -> None:
        match = DFlash().check(MODEL, str(self.folder(tmp_path, add={name: torch.ones(2)})))
        assert match.fit == Fit.NO and words in match.reason

    def test_other_models_are_no_drafters(self, tmp_path: Path) -> None:
        match = DFlash().check(MODEL, str(toys.checkpoint(tmp_path / "model")))
        assert match.fit == Fit.NO and "model is no DFlash drafter" in match.reason

    def test_unknown_tensors_are_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"not known: layers\.0\.self_attn\.sinks"):
            DFlash().check(MODEL, str(self.folder(tmp_path, add={"layers.0.self_attn.sinks": torch.ones(4)})))

    def test_offsets_that_lead_astray_are_an_error(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path, "speculators", add={"d2t": torch.full((files.REDUCED,), 40)})
        match = DFlash().check(MODEL, str(folder))
        with pytest.raises(ModelError, match="d2t leads outside the vocabulary"):
            DFlash().load(toys.target(), match, {})

    @pytest.mark.parametrize("options", [{"tree": 3}, {"confidence": 2.0}, {"confidence": "low"}, {"window": "both"}])
    def test_options_are_checked(self, tmp_path: Path, options: dict[str, object]) -> None:
        match = DFlash().check(MODEL, str(self.folder(tmp_path)))
        with pytest.raises(UsageError, match=next(iter(options))):
            DFlash().load(toys.target(), match, options)


def test_asking_loads_no_torch(tmp_path: Path) -> None:
    """Neither `matches` nor `check`."""
    folder = files.write(tmp_path / "some", files.config("dflash"), files.tensors("dflash"))
    code = (
        "import sys; from outrider.drafters.dflash import DFlash; from outrider.core.drafting import ModelInfo\n"
        "info = ModelInfo('toy', 'llama', 48, 32, 2, '')\n"
        "print([int(m.fit) for m in (DFlash().matches(info), DFlash().check(info, sys.argv[1]))], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[3, 3] False"
