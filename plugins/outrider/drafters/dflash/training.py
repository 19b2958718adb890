"""Training a DFlash draft (arXiv 2602.06036): blocks at random anchors, all of a text in one pass.

A block is an anchor and masks after it. Its slots see each other and the context before the anchor, of which every layer takes
keys and values from the target's fused states. Slot j is asked for the token j places behind the anchor, or one more where the
anchor's slot drafts too. Loss: cross-entropy against the target's likeliest words, weighted by exp(-k / gamma) for
token k of a draft, from 0; as a DSpark draft with what `following` adds.

Letters: `A` anchors of a text, `B` slots, `C` context rows, `d` width, `P` target states, `H` heads, `h` head size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from msgspec import structs
from safetensors.torch import save_file
from torch import Tensor, nn

from outrider.core.base.errors import ModelError, UsageError
from outrider.core.drafting.files import open_draft
from outrider.core.model.families.spec import AttentionSpec, DenseSpec, RopeSpec
from outrider.core.train import warm_start
from outrider.core.train.chunked_loss import Asked, Law
from outrider.core.train.draft_vocabulary import Words, frequent, groups
from outrider.core.train.parts import Mlp, Norm, Projections, start, turns, wide
from outrider.core.train.recipe import Batch, Group, Text
from outrider.core.train.teacher import Teacher

from .following import Confidence, Markov, losses
from .format import LONGEST, Plan, misfit, read_plan


class Settings(msgspec.Struct, kw_only=True):
    """What may be said with `--option`."""

    kind: Literal["dflash", "dspark"] = "dflash"
    rank: int = 64  # of what DSpark adds
    from_anchor: bool | None = None  # the anchor's slot drafts too; None: as published, DSpark's does
    layers: int = 2
    block: int = 8  # slots, the anchor among them
    states: int = 5  # of the target, evenly over its layers
    words: int = 16384  # of the draft's head; 0: all
    every: int = 4  # tokens of an answer for one anchor
    gamma: float = 4.0
    width: int | None = None  # of the MLPs inside; None: the target's
    head: bool = False  # its output rows are trained too

    def __post_init__(self) -> None:
        least = min(self.layers, self.states, self.every, self.rank)
        if least < 1 or not 2 <= self.block <= LONGEST or self.gamma <= 0 or self.words < 0:
            raise ValueError(
                f"layers, states, every and rank must be at least 1, block from 2 to {LONGEST}, gamma above 0"
            )


class Layer(nn.Module):
    """One layer over the slots; keys and values of the context come from the fused states, which are not normed again."""

    def __init__(self, spec: AttentionSpec, width: int, inner: int, eps: float) -> None:
        super().__init__()
        self.input_layernorm = Norm(width, eps)
        self.self_attn = Projections(spec, width, width, eps)
        self.post_attention_layernorm = Norm(width, eps)
        self.mlp = Mlp(width, inner)


class DFlashTrainee(nn.Module):
    """The draft under training; embedding and, unless `head`, output rows are the target's and stay as they are."""

    embedding: Tensor

    def __init__(self, teacher: Teacher, settings: Settings, words: Tensor, mask: int, luck: torch.Generator) -> None:
        super().__init__()
        self.settings, self.mask, self._teacher = settings, mask, teacher
        self.context_states = _evenly(teacher.info.layers, settings.states)
        self.states = (*self.context_states, teacher.info.layers)
        self.from_anchor = settings.kind == "dspark" if settings.from_anchor is None else settings.from_anchor
        self._build(_mixer(teacher), settings.width or _inner(teacher), teacher.spec.eps, len(words))
        start(self, luck, settings.layers)
        if self.markov_head is not None and self.confidence_head is not None:
            self.markov_head.begin(luck)
            self.confidence_head.begin()
        self.register_buffer("embedding", teacher.embedding(), persistent=False)  # [V, d]
        self.head = Words(teacher, words, learnt=settings.head)

    def _build(self, mixer: AttentionSpec, inner: int, eps: float, words: int) -> None:
        """All modules but the head, of the sizes that the settings say."""
        d, vocab, dspark = self._teacher.info.width, self._teacher.info.vocab, self.settings.kind == "dspark"
        self.fc = nn.Linear(len(self.context_states) * d, d, bias=False)
        self.hidden_norm = Norm(d, eps)
        self.layers = nn.ModuleList(Layer(mixer, d, inner, eps) for _ in range(self.settings.layers))
        self.norm = Norm(d, eps)
        self.markov_head = Markov(vocab, words, self.settings.rank) if dspark else None
        self.confidence_head = Confidence(d + self.settings.rank) if dspark else None

    def groups(self) -> list[Group]:
        """All alike; output rows slowly."""
        return groups(self, self.head)

    def learn(self, batch: Batch, luck: torch.Generator) -> Mapping[str, float]:
        """As `Trainee`; a text at a time, each with its share of all anchors."""
        chosen = [(text, self._anchors(text, luck)) for text in batch.texts]
        total = sum(len(anchors) for _, anchors in chosen)
        figures: dict[str, float] = {"loss": 0.0, "right_1": 0.0}
        for text, anchors in chosen:
            if not len(anchors):
                continue
            loss, right = self.loss(batch, text, anchors)
            share = len(anchors) / total
            (loss * share).backward()
            figures["loss"] += float(loss.detach()) * share
            figures["right_1"] += right * share
        return figures

    def loss(self, batch: Batch, text: Text, anchors: Tensor) -> tuple[Tensor, float]:
        """Mean loss of the blocks at `anchors` [A], rows of the batch, and how often their first guess is the target's."""
        places = torch.arange(max(text.answer - 1, text.start), text.end - 1)
        law = self.head.law(batch.states[places, -1])
        first = 0 if self.from_anchor else 1
        slots = torch.arange(self.settings.block - first)  # [D] that draft
        asked = anchors[:, None] + slots - places[0]  # [A, D] place whose law a slot is asked for
        there = asked < len(places)
        asked = asked.clamp(max=len(places) - 1)
        x = self.slots(batch, text, anchors)[:, first:]  # [A, D, d]
        keep = there & law.held[asked]
        weights = (keep * torch.exp(-slots / self.settings.gamma))[keep]
        before = batch.ids[(anchors[:, None] + slots).clamp(max=text.end - 1)]  # [A, D]
        wanted = law.at(asked[keep])
        made = self._asked(x[keep], before[keep], wanted, weights / weights.sum().clamp(min=1e-9))
        right = made.right[slots.expand_as(keep)[keep] == 0].sum()
        return made.loss, float(right) / len(anchors)

    def _asked(self, x: Tensor, before: Tensor, wanted: Law, weights: Tensor) -> Asked:
        """Of slots [R, d] behind the tokens `before` [R], each loss times its weight [R]."""
        if self.markov_head is None or self.confidence_head is None:
            return self.head.ask(x, wanted, weights)
        followed = self.markov_head.markov_w1(before)
        logits = self.head(x) + self.markov_head.markov_w2(followed)
        sure = self.confidence_head.proj(torch.cat((x, followed.to(x.dtype)), -1))[:, 0]
        each = losses(logits, wanted, sure)
        return Asked((each * weights).sum(), wanted.right(logits))

    def slots(self, batch: Batch, text: Text, anchors: Tensor) -> Tensor:
        """States [A, B, d] after the last norm of the blocks at `anchors`."""
        block, dtype = self.settings.block, self.fc.weight.dtype
        rows = torch.arange(text.start, int(anchors.max()))  # context, [C]
        context = self.hidden_norm(self.fc(batch.states[rows, :-1].flatten(1).to(dtype)))  # [C, d]
        ids = torch.full((len(anchors), block), self.mask)
        ids[:, 0] = batch.ids[anchors]
        x = self.embedding[ids.flatten()].to(dtype)  # [A B, d]
        positions = (anchors[:, None] + torch.arange(block)).flatten() - text.start
        hidden = rows[None] >= anchors.repeat_interleave(block)[:, None]  # [A B, C] what a slot does not see
        for layer in self.layers:
            assert isinstance(layer, Layer)
            x = self._layer(layer, x, context, (rows - text.start, positions), hidden)
        return self.norm(x).view(len(anchors), block, -1)

    def _layer(
        self, layer: Layer, x: Tensor, context: Tensor, positions: tuple[Tensor, Tensor], hidden: Tensor
    ) -> Tensor:
        attention, block = layer.self_attn, self.settings.block
        before, here = (turns(attention.spec.rope, each, self._teacher.spec.context) for each in positions)
        u = layer.input_layernorm(x)
        q = attention.queries(u, here).transpose(0, 1)  # [H, A B, h]
        k, v = attention.spread(attention.keys(context, before)), attention.spread(attention.values(context))
        k, v = k.transpose(0, 1), v.transpose(0, 1)  # [H, C, h]
        own_k, own_v = attention.spread(attention.keys(u, here)), attention.spread(attention.values(u))
        own_k, own_v = (each.transpose(0, 1).unflatten(1, (-1, block)) for each in (own_k, own_v))  # [H, A, B, h]
        scale = attention.spec.scale
        far = (wide(q @ k.transpose(1, 2)) * scale).masked_fill(hidden, -torch.inf)  # [H, A B, C]
        near = wide(q.unflatten(1, (-1, block)) @ own_k.transpose(2, 3)) * scale  # [H, A, B, B]
        weights = torch.cat((far, near.flatten(1, 2)), -1).softmax(-1).to(v.dtype)
        mixed = weights[..., : k.shape[1]] @ v
        mixed = mixed + (weights[..., k.shape[1] :].unflatten(1, (-1, block)) @ own_v).flatten(1, 2)
        x = x + attention.o_proj(mixed.transpose(0, 1).flatten(1))
        return x + layer.mlp(layer.post_attention_layernorm(x))

    def _anchors(self, text: Text, luck: torch.Generator) -> Tensor:
        """Random tokens of an answer, or the one before it, with at least one after them; in order."""
        first, end = max(text.answer - 1, text.start + 1), text.end - 1
        count = end - first
        if count <= 0:
            return torch.empty(0, dtype=torch.int64)
        some = torch.randperm(count, generator=luck)[: max(1, -(-count // self.settings.every))]
        return first + some.sort().values

    def load(self, folder: Path) -> None:
        """As `Continuing`."""
        with open_draft(folder) as files:
            plan = read_plan(files)
            problem = misfit(plan, self._teacher.info)
            if problem is not None:
                raise ModelError(f"{problem}.", "Name another drafter to go on from.")
            _check_rows(self.settings, plan.reduced or self._teacher.info.vocab, self._teacher.info.vocab)
            self._become(plan)

            def read(name: str) -> Tensor | None:
                stored = plan.prefix + name
                return files.load(stored) if stored in files.holds else None

            own = {name: part for name, part in self.named_parameters() if not name.startswith("head.")}
            warm_start.put(plan.name, own, read)
            offsets = read("d2t")
            ids = None if offsets is None else offsets + torch.arange(len(offsets))
            rows = read("lm_head.weight") if plan.reduced else None
            self.head = warm_start.words_of(self._teacher, ids, rows, learnt=self.settings.head)

    def _become(self, plan: Plan) -> None:
        """Take the shape of a draft that is there. Raises ModelError for one of a kind that is read and not trained."""
        mixers, channel = [layer.mixer for layer in plan.spec.layers], plan.spec.layers[0].channel
        wanted = warm_start.attention(plan.name, _mixer(self._teacher), mixers[0])
        assert isinstance(channel, DenseSpec)
        plain = plan.embed_scale == plan.logit_scale == 1.0 and plan.logit_cap is None and channel.activation == "silu"
        if plan.selector or any(sight.causal or sight.window for sight in plan.sights) or set(mixers) != {wanted}:
            raise warm_start.refused(plan.name, "layers or a head of another kind")
        if not plain or (plan.markov and plan.sure != plan.spec.width + plan.markov):
            raise warm_start.refused(plan.name, "scales, a cap or a confidence head of another kind")
        self.settings = structs.replace(
            self.settings,
            kind="dspark" if plan.markov else "dflash",
            rank=plan.markov or self.settings.rank,
            block=plan.block,
            layers=len(plan.sights),
        )
        self.mask, self.context_states, self.from_anchor = plan.mask, plan.states, plan.from_anchor
        self.states = (*plan.states, self._teacher.info.layers)
        self._build(wanted, channel.width, plan.spec.eps, plan.reduced or self._teacher.info.vocab)

    def save(self, folder: Path, *, whole: bool) -> None:
        """In the speculators container, bf16; without `whole` output rows that are the target's are left out."""
        folder.mkdir(parents=True, exist_ok=True)
        names = {name: part for name, part in self.named_parameters() if not name.startswith("head.")}
        tensors = {name: part.detach().to(torch.bfloat16).contiguous() for name, part in names.items()}
        if self.head.reduced or self.head.learnt:
            tensors |= self.head.tables(whole=whole)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        tied = "lm_head.weight" not in tensors
        (folder / "config.json").write_text(json.dumps(self._config(tied=tied), indent=2) + "\n", encoding="utf-8")

    def _config(self, *, tied: bool) -> dict[str, Any]:
        layer = self.layers[0]
        assert isinstance(layer, Layer)
        info, mixer = self._teacher.info, layer.self_attn.spec
        inner: dict[str, Any] = {
            "model_type": "qwen3",
            "hidden_size": info.width,
            "intermediate_size": layer.mlp.gate_proj.out_features,
            "num_attention_heads": mixer.heads,
            "num_key_value_heads": mixer.kv_heads,
            "head_dim": mixer.head_dim,
            "num_hidden_layers": len(self.layers),
            "layer_types": ["full_attention"] * len(self.layers),
            "hidden_act": "silu",
            "rms_norm_eps": self.norm.eps,
            "rope_theta": mixer.rope.theta if mixer.rope is not None else 10000.0,
            "max_position_embeddings": self._teacher.spec.context,
            "vocab_size": info.vocab,
        }
        config: dict[str, Any] = {
            "architectures": ["DFlashDraftModel"],
            "speculators_model_type": "dflash",
            "transformer_layer_config": inner,
            "aux_hidden_state_layer_ids": list(self.context_states),
            "block_size": self.settings.block,
            "mask_token_id": self.mask,
            "num_target_layers": info.layers,
            "sample_from_anchor": self.from_anchor,
            "draft_vocab_size": len(self.head.words),
            "speculators_config": self._proposal(),
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }
        if self.settings.kind == "dspark":
            config |= {
                "architectures": ["DSparkDraftModel"],
                "speculators_model_type": "dspark",
                "markov_rank": self.settings.rank,
                "markov_head_type": "vanilla",
                "enable_confidence_head": True,
                "confidence_head_with_markov": True,
            }
        return config | ({"tied_to_target": True} if tied and self.head.reduced else {})

    def _proposal(self) -> dict[str, Any]:
        """How speculators' container says for which model it drafts how much."""
        proposal = {
            "proposal_type": "greedy",
            "speculative_tokens": self.settings.block - (not self.from_anchor),
            "accept_tolerance": 0.0,
            "verifier_accept_k": 1,
        }
        names = self._teacher.info.config.get("architectures")
        return {
            "algorithm": self.settings.kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": None, "architectures": names or []},
        }


class DFlashRecipe:
    """Makes DFlash drafts; the target stays as it is."""

    settings = Settings
    gradients = False

    def trainee(self, teacher: Teacher, settings: Settings, counts: Tensor, luck: torch.Generator) -> DFlashTrainee:
        """A fresh draft; masks are the last token that the data never has. As `Recipe`."""
        never = (counts == 0).nonzero()[:, 0]
        mask = int(never[-1]) if len(never) else int(counts.argmin())
        words = frequent(counts, settings.words)
        _check_rows(settings, len(words), teacher.info.vocab)
        return DFlashTrainee(teacher, settings, words, mask, luck)


def _check_rows(settings: Settings, words: int, vocab: int) -> None:
    """Without a table of its words a container has no output rows of its own. Raises UsageError if they are to be trained."""
    if settings.head and words == vocab:
        raise UsageError(
            "A DFlash draft that knows every token has the target's output rows, which are not trained.",
            f"Leave head out, or give --option words=N below {vocab}.",
        )


def _evenly(layers: int, count: int) -> tuple[int, ...]:
    """Numbers of `count` states from the second to the third last."""
    if count == 1:
        return (max(1, layers // 2),)
    low, high = min(2, layers), max(2, layers - 2)
    return tuple(dict.fromkeys(round(low + at * (high - low) / (count - 1)) for at in range(count)))


def _mixer(teacher: Teacher) -> AttentionSpec:
    """Attention of the draft: heads as the target has them, queries and keys normed, turned in the plain way."""
    mixer = next((layer.mixer for layer in teacher.spec.layers if isinstance(layer.mixer, AttentionSpec)), None)
    if mixer is None:
        raise ModelError(
            f"{teacher.info.name} has no plain attention whose heads a DFlash draft could take.",
            "Train medusa instead.",
        )
    theta = mixer.rope.theta if mixer.rope is not None else 10000.0
    size = mixer.head_dim
    return AttentionSpec(mixer.heads, mixer.kv_heads, size, RopeSpec(theta, size), size**-0.5, qk_norm="head")


def _inner(teacher: Teacher) -> int:
    widths = [layer.channel.width for layer in teacher.spec.layers if isinstance(layer.channel, DenseSpec)]
    return widths[-1] if widths else 3 * teacher.info.width
