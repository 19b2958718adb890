"""Training an EAGLE-3 draft (arXiv 2503.01840) as it will be used: the first guess from the target's states, every further
one from the draft's own output for the guess before ("training-time test").

Row r stands for the token at r + 1 and the state at r. In unrolled step s (from 1) it takes the token at r + s beside its own
output of step s - 1, sees the first step's keys of the rows up to r and its own keys of the later steps, and is asked for what
the target said at r + s. Loss: cross-entropy against the likeliest of the draft's words, as the target has it, where the
target's best word is one of them, weighted by `decay` for every further step.

Letters: `N` rows of a batch, `R` of them that are asked, `C` columns of a text, `D` width of the target, `d` of the draft,
`Vd` words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from outrider.core.model.families.spec import AttentionSpec
from outrider.core.train import warm_start
from outrider.core.train.draft_vocabulary import Words, frequent, groups
from outrider.core.train.parts import Mlp, Norm, Projections, Turn, start, turns, wide
from outrider.core.train.recipe import Batch, Group
from outrider.core.train.teacher import Teacher

from .first import FirstTrainee
from .format import default_states
from .settings import Settings
from .sizes import inner_of, mixer_of, opened, raw_embedding, sizes

STATES = 3


class Layer(nn.Module):
    """The one layer: attention over embedding and state side by side, then an MLP."""

    def __init__(self, spec: AttentionSpec, width: int, inner: int, eps: float) -> None:
        super().__init__()
        self.input_layernorm = Norm(width, eps)
        self.hidden_norm = Norm(width, eps)
        self.self_attn = Projections(spec, width, 2 * width, eps)
        self.post_attention_layernorm = Norm(width, eps)
        self.mlp = Mlp(width, inner)
        self.norm_first = False  # the residual takes the normed state

    def entry(self, embedded: Tensor, state: Tensor) -> Tensor:
        """What attention reads of rows [R, d]: [R, 2 d]."""
        return torch.cat((self.input_layernorm(embedded), self.hidden_norm(state)), -1)

    def rest(self, state: Tensor, mixed: Tensor) -> Tensor:
        """From the heads' output [R, H, h] on."""
        x = (self.hidden_norm(state) if self.norm_first else state) + self.self_attn.o_proj(mixed.flatten(1))
        return x + self.mlp(self.post_attention_layernorm(x))


class EagleTrainee(nn.Module):
    """The draft under training; embedding and, unless `head`, output rows are the target's and stay as they are."""

    embedding: Tensor

    def __init__(self, teacher: Teacher, settings: Settings, words: Tensor, luck: torch.Generator) -> None:
        super().__init__()
        self.settings, self._teacher = settings, teacher
        mixer = mixer_of(teacher)
        self.made_for = teacher.spec.context
        spec, d = teacher.spec, teacher.info.width
        told = settings.layers or default_states(teacher.info.layers)
        self.states = (*told, teacher.info.layers)
        self.fc = nn.Linear(STATES * d, d, bias=False)
        inner = settings.width or inner_of(teacher)
        self.midlayer = Layer(mixer, d, inner, spec.eps)
        self.norm = Norm(d, spec.eps)
        start(self, luck)
        self.register_buffer("embedding", teacher.embedding(), persistent=False)  # [V, d]
        self.head = Words(teacher, words, learnt=settings.head)

    def groups(self) -> list[Group]:
        """All alike; output rows slowly, they are good already."""
        return groups(self, self.head)

    def learn(self, batch: Batch, luck: torch.Generator) -> Mapping[str, float]:
        """As `Trainee`: one pass over the batch for each unrolled step, gradients at the end."""
        places = _Places(batch)
        law = self.head.law(batch.states[places.places, STATES])
        losses, right = list[Tensor](), list[Tensor]()
        state = self.fc(batch.states[:, :STATES].flatten(1).to(self.fc.weight.dtype))  # [N, d]
        memory = _Memory(self, batch, state, places)
        state = state[places.rows]
        for step in range(self.settings.steps):
            rows = places.of(step)
            if not len(rows):
                break
            state = memory.pass_(batch, state if not step else state[places.still(step)], step)
            wanted = law.at(places.asked(step))
            asked = self.head.ask(self.norm(state), wanted, wanted.weights)
            losses.append(asked.loss)
            right.append(asked.right.float().mean())
        weights = [self.settings.decay**step for step in range(len(losses))]
        loss = torch.stack([weight * one for weight, one in zip(weights, losses, strict=True)]).sum() / sum(weights)
        loss.backward()
        return {"loss": float(loss.detach())} | {f"right_{step + 1}": float(share) for step, share in enumerate(right)}

    def load(self, folder: Path) -> None:
        """As `Continuing`."""
        with opened(folder, self._teacher.info, 3) as (container, read):
            if container.norm_output or len(container.spec.layers) > 1:
                raise warm_start.refused(container.name, "a layer of another kind")
            states = container.states(self._teacher.info)
            if len(states) != STATES:
                raise warm_start.refused(container.name, f"{len(states)} states of the target")
            eps = container.spec.eps
            self.midlayer = Layer(sizes(container)[0], self._teacher.info.width, sizes(container)[1], eps)
            self.midlayer.norm_first = container.norm_before_residual
            self.norm.eps = eps
            names = {name: part for name, part in self.named_parameters() if not name.startswith("head.")}
            warm_start.put(
                container.name, {name.replace("midlayer.", "layers.0."): names[name] for name in names}, read
            )
            self.states = (*states, self._teacher.info.layers)
            offsets = read("d2t")
            ids = None if offsets is None else offsets + torch.arange(len(offsets))
            self.head = warm_start.words_of(self._teacher, ids, read("lm_head.weight"), learnt=self.settings.head)

    def save(self, folder: Path, *, whole: bool) -> None:
        """As EAGLE-3's authors publish it, in bf16; `whole`: with embedding and output rows that are the target's."""
        folder.mkdir(parents=True, exist_ok=True)
        names = {name: part for name, part in self.named_parameters() if not name.startswith("head.")}
        tensors = {name: part.detach().to(torch.bfloat16).contiguous() for name, part in names.items()}
        tensors |= self.head.tables(whole=whole)
        if whole:
            tensors["embed_tokens.weight"] = raw_embedding(self._teacher)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        text = json.dumps(self._config(tied="lm_head.weight" not in tensors), indent=2) + "\n"
        (folder / "config.json").write_text(text, encoding="utf-8")

    def _config(self, *, tied: bool) -> dict[str, Any]:
        info, mixer = self._teacher.info, self.midlayer.self_attn.spec
        config: dict[str, Any] = {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "hidden_size": info.width,
            "intermediate_size": self.midlayer.mlp.gate_proj.out_features,
            "num_attention_heads": mixer.heads,
            "num_key_value_heads": mixer.kv_heads,
            "head_dim": mixer.head_dim,
            "num_hidden_layers": 1,
            "num_target_layers": info.layers,
            "hidden_act": "silu",
            "rms_norm_eps": self.norm.eps,
            "attention_bias": mixer.bias,
            "rope_theta": mixer.rope.theta if mixer.rope is not None else 10000.0,
            "max_position_embeddings": self._teacher.spec.context,
            "vocab_size": info.vocab,
            "draft_vocab_size": len(self.head.words),
            "eagle_aux_hidden_state_layer_ids": list(self.states[:STATES]),
            "norm_before_residual": self.midlayer.norm_first,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }
        return config | ({"tied_to_target": True} if tied else {})


class _Places:
    """Which rows are asked in which step. In every text they begin at the same row and get fewer by one with every step."""

    def __init__(self, batch: Batch) -> None:
        self.columns: list[range] = []  # rows with a token after them, of each text
        self._rows: list[range] = []
        self._asked: list[
            int
        ] = []  # number of the place that the first row of each text is asked for in the first step
        places, count = list[int](), 0
        for text in batch.texts:
            first, end = max(text.answer - 1, text.start + 1), text.end - 1  # places whose law is known and wanted
            self.columns.append(range(text.start, end))
            self._rows.append(range(first - 1, max(first - 1, end - 1)))
            self._asked.append(count)
            places += range(first, end)
            count += max(0, end - first)
        self.places = torch.tensor(places, dtype=torch.int64)  # [Q]
        self.rows = torch.tensor(
            [row for rows in self._rows for row in rows], dtype=torch.int64
        )  # [R] of the first step

    def counts(self, step: int) -> list[int]:
        """Rows of each text."""
        return [max(0, len(rows) - step) for rows in self._rows]

    def of(self, step: int) -> Tensor:
        """Rows of the batch."""
        found = [row for rows, count in zip(self._rows, self.counts(step), strict=True) for row in rows[:count]]
        return torch.tensor(found, dtype=torch.int64)

    def still(self, step: int) -> Tensor:
        """Which rows of the step before go on."""
        found, at = list[int](), 0
        for before, count in zip(self.counts(step - 1), self.counts(step), strict=True):
            found += range(at, at + count)
            at += before
        return torch.tensor(found, dtype=torch.int64)

    def asked(self, step: int) -> Tensor:
        """Numbers of the places that the rows are asked for."""
        pairs = zip(self._asked, self.counts(step), strict=True)
        return torch.tensor([first + step + at for first, count in pairs for at in range(count)], dtype=torch.int64)


class _Memory:
    """Keys and values: of the first step those of all rows, of every later one those of the rows that were asked."""

    def __init__(self, trainee: EagleTrainee, batch: Batch, state: Tensor, places: _Places) -> None:
        self._layer, self._embedding = trainee.midlayer, trainee.embedding
        self._places, self._made_for = places, trainee.made_for
        every = torch.tensor([row for columns in places.columns for row in columns], dtype=torch.int64)
        x = self._layer.entry(self._embedding[batch.ids[every + 1]], state[every])
        attention, turn = self._layer.self_attn, self._turn(every)
        self._keys = attention.spread(attention.keys(x, turn))  # [C, H, h]
        self._values = attention.spread(attention.values(x))
        self._own: list[tuple[Tensor, Tensor]] = []  # of the later steps, [R, H, h] each
        self._every = {int(row): place for place, row in enumerate(every.tolist())}

    def pass_(self, batch: Batch, state: Tensor, step: int) -> Tensor:
        """Features [R, d] of a step from 0, of rows whose states are `state` [R, d]."""
        rows, attention = self._places.of(step), self._layer.self_attn
        x = self._layer.entry(self._embedding[batch.ids[rows + 1 + step]], state)
        turn = self._turn(rows + step)
        queries = attention.queries(x, turn)
        if step:
            still = self._places.still(step)
            self._own = [(keys[still], values[still]) for keys, values in self._own]
            own = attention.spread(attention.keys(x, turn)), attention.spread(attention.values(x))
            self._own.append(own)
        return self._layer.rest(state, self._attended(queries, rows, step))

    def _attended(self, queries: Tensor, rows: Tensor, step: int) -> Tensor:
        """[R, H, h] -> [R, H, h]: a text at a time."""
        scale = self._layer.self_attn.spec.scale
        made, at = list[Tensor](), 0
        for columns, count in zip(self._places.columns, self._places.counts(step), strict=True):
            if not count:
                continue
            here = slice(at, at + count)
            first = self._every[columns[0]]
            last = self._every[int(rows[at + count - 1])] + 1
            q = queries[here].transpose(0, 1)  # [H, R, h]
            k, v = (x[first:last].transpose(0, 1) for x in (self._keys, self._values))  # [H, C, h]
            scores = wide(q @ k.transpose(1, 2)) * scale  # [H, R, C]
            places = torch.arange(first, last)
            own_place = torch.tensor([self._every[row] for row in rows[here].tolist()])
            scores = scores.masked_fill(places[None] > own_place[:, None], -torch.inf)
            own = [(q * key[here].transpose(0, 1)).sum(-1, keepdim=True) * scale for key, _ in self._own]
            weights = torch.cat((scores, *own), -1).softmax(-1).to(v.dtype)
            mixed = weights[..., : last - first] @ v
            for number, (_, value) in enumerate(self._own):
                mixed = mixed + weights[..., last - first + number, None] * value[here].transpose(0, 1)
            made.append(mixed.transpose(0, 1))
            at += count
        return torch.cat(made)

    def _turn(self, positions: Tensor) -> Turn:
        return turns(self._layer.self_attn.spec.rope, positions, self._made_for)


class EagleRecipe:
    """Makes EAGLE-3 drafts, or EAGLE-1's; the target stays as it is."""

    settings = Settings
    gradients = False

    def trainee(
        self, teacher: Teacher, settings: Settings, counts: Tensor, luck: torch.Generator
    ) -> EagleTrainee | FirstTrainee:
        """A fresh draft whose words are those that `counts` finds most often. As `Recipe`."""
        words = frequent(counts, settings.words)
        if settings.version == 1:
            return FirstTrainee(teacher, settings, words, luck)
        return EagleTrainee(teacher, settings, words, luck)
