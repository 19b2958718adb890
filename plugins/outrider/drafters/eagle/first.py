"""Training an EAGLE-1 draft (arXiv 2401.15077): it foretells the target's next normed state, and by that the next token.

Row r stands for the token at r + 1 and the target's normed state at r. Loss: smooth L1 between what the draft makes of row r and
the target's normed state at r + 1, and `token` times the cross-entropy between what the target's head says of the two. Noise on
the states that go in makes up for those that will be the draft's own.

Letters: `N` rows of a batch, `R` some of them, `V` vocabulary, `d` width.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from outrider.core.model.families.spec import AttentionSpec
from outrider.core.train import warm_start
from outrider.core.train.draft_vocabulary import Sayings, Words
from outrider.core.train.parts import Mlp, Norm, Projections, attended, start, turns, wide
from outrider.core.train.recipe import Batch, Group
from outrider.core.train.teacher import Teacher

from .settings import Settings
from .sizes import inner_of, mixer_of, opened, raw_embedding, sizes


class Layer(nn.Module):
    """The one layer; it norms before its MLP alone."""

    def __init__(self, spec: AttentionSpec, width: int, inner: int, eps: float, made_for: int) -> None:
        super().__init__()
        self.self_attn = Projections(spec, width, width, eps)
        self.post_attention_layernorm = Norm(width, eps)
        self.mlp = Mlp(width, inner)
        self._made_for, self.eps = made_for, eps

    def forward(self, x: Tensor) -> Tensor:
        """The rows of one text, [R, d] -> [R, d]."""
        attention = self.self_attn
        turn = turns(attention.spec.rope, torch.arange(x.shape[0], device=x.device), self._made_for)
        keys, values = attention.spread(attention.keys(x, turn)), attention.spread(attention.values(x))
        mixed = attended(attention.queries(x, turn), keys, values, attention.spec.scale)
        x = x + attention.o_proj(mixed.flatten(1))
        return x + self.mlp(self.post_attention_layernorm(x))


class FirstTrainee(nn.Module):
    """The draft under training; embedding and head are the target's."""

    embedding: Tensor

    def __init__(self, teacher: Teacher, settings: Settings, words: Tensor, luck: torch.Generator) -> None:
        super().__init__()
        self.settings, self._teacher = settings, teacher
        self.states = (teacher.info.layers,)
        d = teacher.info.width
        self.fc = nn.Linear(2 * d, d, bias=False)
        inner = settings.width or inner_of(teacher)
        self.layers = nn.ModuleList([self._layer(mixer_of(teacher), inner, teacher.spec.eps)])
        start(self, luck)
        self.register_buffer("embedding", teacher.embedding(), persistent=False)  # [V, d]
        self.head = Words(teacher, words)

    def _layer(self, spec: AttentionSpec, inner: int, eps: float) -> Layer:
        return Layer(spec, self._teacher.info.width, inner, eps, self._teacher.spec.context)

    def groups(self) -> list[Group]:
        """All alike."""
        return [Group(list(self.parameters()), fresh=True)]

    def learn(self, batch: Batch, luck: torch.Generator) -> Mapping[str, float]:
        """As `Trainee`, all rows at once."""
        z = self._teacher.norm(batch.states[:, 0]).to(self.embedding.dtype)  # [N, d]
        said = Sayings(batch, self.head, batch.states[:, 0]).ahead(1)
        if not len(said.rows):
            return {"loss": 0.0}
        noise = torch.rand(z.shape, generator=luck).to(z) * 2 - 1
        features = self.features(batch, z + noise * self.settings.noise)[said.rows]
        near = F.smooth_l1_loss(wide(features), wide(z[said.rows + 1]))
        logits = self.head(features)
        token = said.loss(logits)
        loss = near + self.settings.token * token
        loss.backward()
        figures = {"loss": loss, "loss_states": near, "loss_tokens": token}
        return {name: float(value.detach()) for name, value in figures.items()} | {"right_1": said.right(logits)}

    def features(self, batch: Batch, states: Tensor) -> Tensor:
        """What the draft makes of normed states [N, d]: [N, d], zeros for the last row of each text, behind which no token is."""
        features = torch.zeros_like(states)
        for text in batch.texts:
            rows = slice(text.start, text.end - 1)
            embedded = self.embedding[batch.ids[text.start + 1 : text.end]]
            x = self.fc(torch.cat((embedded, states[rows]), -1))
            features = features.slice_scatter(self.layers[0](x).to(features.dtype), 0, rows.start, rows.stop)
        return features

    def load(self, folder: Path) -> None:
        """As `Continuing`."""
        with opened(folder, self._teacher.info, 1) as (container, read):
            self.layers[0] = self._layer(*sizes(container), container.spec.eps)
            if read("fc.bias") is not None:
                self.fc.bias = nn.Parameter(torch.zeros_like(self.fc.weight[:, 0]))
            warm_start.put(container.name, dict(self.named_parameters()), read)

    def save(self, folder: Path, *, whole: bool) -> None:
        """As EAGLE's authors publish it, in bf16; `whole`: with the target's embedding."""
        folder.mkdir(parents=True, exist_ok=True)
        parts = self.named_parameters()
        tensors = {name: part.detach().to("cpu", torch.bfloat16).contiguous() for name, part in parts}
        if whole:
            tensors["embed_tokens.weight"] = raw_embedding(self._teacher)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(self._config(), indent=2) + "\n", encoding="utf-8")

    def _config(self) -> dict[str, Any]:
        layer, info = self.layers[0], self._teacher.info
        assert isinstance(layer, Layer)
        mixer = layer.self_attn.spec
        return {
            "architectures": ["LlamaForCausalLMEagle"],
            "model_type": "llama",
            "hidden_size": info.width,
            "intermediate_size": layer.mlp.gate_proj.out_features,
            "num_attention_heads": mixer.heads,
            "num_key_value_heads": mixer.kv_heads,
            "head_dim": mixer.head_dim,
            "num_hidden_layers": 1,
            "num_target_layers": info.layers,
            "hidden_act": "silu",
            "rms_norm_eps": layer.eps,
            "attention_bias": mixer.bias,
            "rope_theta": mixer.rope.theta if mixer.rope is not None else 10000.0,
            "max_position_embeddings": self._teacher.spec.context,
            "vocab_size": info.vocab,
            "bias": self.fc.bias is not None,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }
