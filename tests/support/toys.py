"""Small models and drafters built in code, shared by the tests. Nothing here downloads or needs a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from outrider.core.base.errors import OutriderError
from outrider.core.base.protocol import DrafterChoice, Report
from outrider.core.drafting import Committed, Context, DeviceContext, Draft, Drafter, ModelInfo, Needs, Shape, Stateless
from outrider.core.drafting.active import ActiveDrafter
from outrider.core.model.blocks.attention import Attention
from outrider.core.model.blocks.block import Block, Weights
from outrider.core.model.blocks.mlp import Dense
from outrider.core.model.blocks.norm import Norm
from outrider.core.model.cache.layout import PassLayout
from outrider.core.model.cache.states import Cache
from outrider.core.model.decoder import Decoder
from outrider.core.model.families.spec import AttentionSpec, DenseSpec, LayerSpec, RopeSpec, TargetSpec
from outrider.core.model.kernels.linear import Linear, Table
from outrider.core.model.load import tables
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel
from outrider.core.policy.policy import Policy
from outrider.core.sampling.draft_tree import DraftTree
from outrider.core.sampling.sample import Settings
from outrider.core.session.answer import Answer, AnswerRequest
from outrider.core.session.chat_cache import ChatCache
from outrider.core.session.composite import Composite
from outrider.core.session.pool import PooledDrafter, Wanted

GREEDY = Settings(temperature=0)
SAMPLED = Settings(temperature=1.0, top_p=1.0)


def spec(vocab: int = 48, layers: int = 2, context: int = 256) -> TargetSpec:
    """A llama of a few thousand weights."""
    mixer = AttentionSpec(heads=4, kv_heads=2, head_dim=8, rope=RopeSpec(10000.0, 8), scale=8**-0.5)
    layer = LayerSpec(mixer, DenseSpec(48))
    return TargetSpec("llama", 32, vocab, context, 1e-5, (layer,) * layers, tied=False)


def decoder(seed: int = 0, vocab: int = 48, layers: int = 2, context: int = 256, sharp: float = 1.0) -> Decoder:
    """Random weights; `sharp` scales the logits."""
    s = spec(vocab, layers, context)
    g = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=g) / columns**0.5

    def norm() -> Norm:
        return Norm(s.width, torch.rand(s.width, generator=g) + 0.5, s.eps)

    blocks = []
    for index, layer in enumerate(s.layers):
        mixer, channel = layer.mixer, layer.channel
        assert isinstance(mixer, AttentionSpec) and isinstance(channel, DenseSpec)
        before = norm()
        mix = Linear(matrix((mixer.heads + 2 * mixer.kv_heads) * mixer.head_dim, s.width))
        attention = Attention(mixer, mix, Linear(matrix(s.width, mixer.heads * mixer.head_dim)))
        after = norm()
        gate_up = Linear(matrix(2 * channel.width, s.width))
        dense = Dense(gate_up, Linear(matrix(s.width, channel.width)), "silu")
        blocks.append(Block(attention, dense, index, before, None, after, None))
    rows = context + MAX_DRAFT_ROWS
    head = Linear(matrix(vocab, s.width) * 3 * sharp)
    embedding = matrix(vocab, s.width) * 6
    final = Norm(s.width, torch.ones(s.width), s.eps)
    cpu = torch.device("cpu")
    ropes = tables(s, rows, torch.float32, cpu)
    return Decoder(s, Weights(Table(embedding, torch.float32), tuple(blocks), final, head, ropes, rows))


def target(seed: int = 0, vocab: int = 48, context: int = 256, layers: int = 2, sharp: float = 1.0) -> TargetModel:
    """A toy target with its own cache."""
    info = ModelInfo(f"toy-{seed}", "llama", vocab, 32, layers, tokenizer=f"toy-{vocab}")
    return TargetModel(decoder(seed, vocab, layers, context, sharp), info, context)


class Counted:
    """Every walk through layers of a decoder from now on: how many rows, and how many layers."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[int, int]] = []
        blocks = Decoder._blocks

        def counting(self_: Decoder, ids: Tensor, cache: Cache, where: PassLayout, layers: range, keep: Any) -> Tensor:
            self.calls.append((where.rows, len(layers)))
            return blocks(self_, ids, cache, where, layers, keep)

        patch.setattr(Decoder, "_blocks", counting)

    def work(self) -> int:
        """Rows times layers since this was asked last."""
        work = sum(rows * layers for rows, layers in self.calls)
        self.calls.clear()
        return work


class Letters:
    """A detokeniser of the toys: id 7 is the text `<7>`."""

    def push(self, token: int) -> str:
        return f"<{token}>"

    def flush(self) -> str:
        return ""


class Still:
    """Control of an answer that nobody disturbs; `switches` maps a pass number to a choice."""

    def __init__(self, switches: dict[int, DrafterChoice] | None = None, stop_after: int | None = None) -> None:
        self.asked = 0
        self.switches = switches or {}
        self.stop_after = stop_after
        self.answers: list[tuple[str, OutriderError | None]] = []

    def cancelled(self) -> bool:
        self.asked += 1
        return self.stop_after is not None and self.asked > self.stop_after

    def switched(self) -> DrafterChoice | None:
        return self.switches.pop(self.asked, None)

    def switch_done(self, name: str, error: OutriderError | None) -> None:
        self.answers.append((name, error))


def guard(
    drafter: Drafter, *, trusted: bool = True, notes: list[str] | None = None, name: str = "toy"
) -> PooledDrafter:
    """A drafter as the engine holds it."""
    guarded = PooledDrafter(name, drafter, trusted, (notes if notes is not None else []).append)
    guarded.reset()
    return guarded


def answer(
    cache: ChatCache,
    ids: Sequence[int],
    drafters: ActiveDrafter | dict[str, ActiveDrafter | None] | None = None,
    *,
    settings: Settings = GREEDY,
    seed: int = 1,
    rule: str = "match",
    limit: int | None = 40,
    eos: Sequence[int] = (),
    stop: Sequence[str] = (),
    tokens: int | None = 4,
    control: Still | None = None,
    events: list | None = None,
    detail: bool = False,
    chances: bool = False,
    watch: Callable | None = None,
    stable: int = 0,
    policy: Policy | None = None,
) -> Report:
    """One answer on `cache`, drafted by `drafters` (by name where the test switches)."""
    table = drafters if isinstance(drafters, dict) else {"toy": drafters}
    for rider in table.values():
        for part in rider._parts if isinstance(rider, Composite) else [rider]:
            if isinstance(part, PooledDrafter):
                cache.drafters.put(Wanted(part.name, str(id(part))), part)

    def choose(choice: DrafterChoice) -> ActiveDrafter | None:
        return table[choice.name]

    order = AnswerRequest(
        request=1,
        model="toy",
        ids=list(ids),
        settings=settings,
        seed=seed,
        rule=rule,
        drafter=DrafterChoice(name=next(iter(table)), tokens=tokens),
        eos=frozenset(eos),
        pieces=Letters(),
        decode=lambda some: "".join(f"<{i}>" for i in some),
        stop=tuple(stop),
        limit=limit,
        detail=detail,
        chances=chances,
        watch=watch,
        stable=stable,
    )
    say: Callable = events.append if events is not None else lambda event: None
    return Answer(order, cache, policy or Policy(), choose, say).run(control or Still())


# ---------------------------------------------------------------------------------------------------- drafters


def tree(
    tokens: Sequence[int],
    parents: Sequence[int] | None = None,
    probs: Tensor | None = None,
    confidence: Sequence[float] | None = None,
) -> DraftTree:
    """A draft from lists."""
    return DraftTree(
        torch.tensor(list(tokens), dtype=torch.int64),
        None if parents is None else torch.tensor(list(parents), dtype=torch.int64),
        probs,
        None if confidence is None else torch.tensor(list(confidence), dtype=torch.float64),
    )


class Knows(Stateless):
    """Proposes `truth` behind `prompt_length` tokens; from draft token `right` on it is wrong on purpose."""

    def __init__(self, prompt_length: int, truth: Sequence[int], right: int = 99, vocab: int = 48) -> None:
        self.shape = Shape(nodes=32, depth=32)
        self.prompt_length, self.truth, self.right, self.vocab = prompt_length, list(truth), right, vocab

    def propose(self, context: Context) -> Draft | None:
        done = len(context.tokens) - self.prompt_length
        tokens = self.truth[done : done + context.nodes]
        tokens = [t if i < self.right else (t + 1) % self.vocab for i, t in enumerate(tokens)]
        return Draft(torch.tensor(tokens)) if tokens else None


class Anything(Stateless):
    """Random chains, without `probs`."""

    def __init__(self, vocab: int = 48, seed: int = 0) -> None:
        self.shape = Shape(nodes=8, depth=8)
        self.vocab = vocab
        self.generator = torch.Generator().manual_seed(seed)

    def propose(self, context: Context) -> Draft | None:
        n = int(torch.randint(0, context.nodes + 1, (), generator=self.generator))
        return Draft(torch.randint(0, self.vocab, (n,), generator=self.generator))


class Bushy(Stateless):
    """A tree: every level has two children, the first (or, with `turn` 1, the second) of which goes on."""

    def __init__(self, inner: Stateless, turn: int = 0) -> None:
        self.inner, self.turn, self.shape = inner, turn, Shape(nodes=32, depth=32)

    def propose(self, context: Context) -> Draft | None:
        draft = self.inner.propose(context)  # type: ignore[attr-defined]
        if draft is None:
            return None
        tokens, parents, last = [], [], -1
        for token in draft.tokens.tolist()[: context.nodes // 2]:
            parents += [last, last]
            last = len(tokens) + self.turn
            tokens += [(token + 1) % 48, token] if self.turn else [token, 0]
        return Draft(torch.tensor(tokens, dtype=torch.int64), torch.tensor(parents, dtype=torch.int64))


class Listener(Stateless):
    """Records what it was told; checks the alignment rule of states."""

    needs = Needs(hidden=(0, 2))

    def __init__(self) -> None:
        self.shape = Shape(nodes=4, depth=4)
        self.heard: list[int] = []
        self.states: list[Tensor | None] = []

    def reset(self) -> None:
        self.heard, self.states = [], []

    def rewind(self, length: int) -> None:
        del self.heard[length:], self.states[length:]

    def advance(self, step: Committed) -> None:
        assert step.start == len(self.heard), "a step that does not continue the conversation"
        rows = 0 if step.hidden is None else step.hidden.shape[0]
        assert rows <= step.tokens.shape[0]
        self.heard += step.tokens.tolist()
        self.states += [None] * (step.tokens.shape[0] - rows)
        if step.hidden is not None:
            self.states += list(step.hidden)

    def propose(self, context: Context) -> Draft | None:
        assert list(context.tokens) == self.heard
        return Draft(torch.tensor([3, 4, 5][: context.nodes]))


class Broken(Stateless):
    """Raises in one verb, at its `after`-th call."""

    def __init__(self, verb: str, after: int = 1) -> None:
        self.shape = Shape(nodes=4, depth=4)
        self.verb, self.left = verb, after

    def _maybe(self, verb: str) -> None:
        if verb == self.verb:
            self.left -= 1
            if self.left <= 0:
                raise RuntimeError("it broke")

    def advance(self, step: Committed) -> None:
        self._maybe("advance")

    def propose(self, context: Context) -> Draft | None:
        self._maybe("propose")
        return Draft(torch.tensor([1, 2][: context.nodes]))


class OneLaw(Stateless):
    """Draws every draft token from one fixed law and tells it; with `trim` it drops the draft behind a sampled value."""

    def __init__(self, law: Tensor, *, tells: Tensor | None = None, trim: int | None = None) -> None:
        self.shape = Shape(nodes=8, depth=8)
        self.law, self.tells, self.trim = law, law if tells is None else tells, trim

    def propose(self, context: Context) -> Draft | None:
        tokens: list[int] = []
        for index in range(context.nodes):
            token = context.rng(len(context.tokens) + index).draw(self.law)
            if token == self.trim:
                break
            tokens.append(token)
        probs = self.tells.expand(len(tokens), -1)
        return Draft(torch.tensor(tokens, dtype=torch.int64), probs=probs)


class Bigram:
    """Both forms at once: guesses what followed the newest token last time; the host form is the reference of the device form."""

    needs = Needs()

    def __init__(self, vocab: int = 48, *, device: bool) -> None:
        self.shape = Shape(nodes=8, depth=8)
        self.device = device
        self.after = torch.arange(vocab)  # [V] what followed each id last
        self.newest = torch.zeros((), dtype=torch.int64)

    def reset(self) -> None:
        self.after = torch.arange(self.after.shape[0])

    def advance(self, step: Committed) -> None:
        for token in step.tokens:
            self.after[self.newest] = token
            self.newest = token.clone()

    def propose_device(self, context: DeviceContext) -> Draft | None:
        after, newest, flying = self.after, self.newest, context.in_flight
        if flying is not None:
            after = after.clone()
            for index in range(flying.tokens.shape[0]):  # static width; rows at and beyond `count` change nothing
                true = index < flying.count[0]
                after[newest] = torch.where(true, flying.tokens[index], after[newest])
                newest = torch.where(true, flying.tokens[index], newest)
        return Draft(_followers(after, newest, context.nodes))

    def propose(self, context: Context) -> Draft | None:
        return Draft(_followers(self.after, self.newest, context.nodes))

    def rewind(self, length: int) -> None:
        """A guess from cut text is still a guess."""

    def fork(self) -> Bigram:
        return Bigram(self.after.shape[0], device=self.device)

    def close(self) -> None:
        """Nothing to free."""


def _followers(after: Tensor, token: Tensor, count: int) -> Tensor:
    """What follows a token, and that one, and so on [count]."""
    chain = []
    for _ in range(count):
        token = after[token]
        chain.append(token)
    return torch.stack(chain)


# ---------------------------------------------------------------------------------------------------- files

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tokenizer_json(extra: Sequence[str] = ()) -> str:
    """A byte-level tokenizer of 256 bytes and three control tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *extra]
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return tokenizer.to_str()


def checkpoint(folder: Path, seed: int = 0, layers: int = 2, extra: Sequence[str] = (), context: int = 256) -> Path:
    """A tiny chat model on disk, whole: config, weights, tokenizer, template."""
    vocab = 259 + len(extra)
    model = decoder(seed, vocab, layers, context)
    s, w = model.spec, model.weights
    assert w.head.weight is not None and w.norm.weight is not None
    tensors = {"model.embed_tokens.weight": w.embedding.weight, "model.norm.weight": w.norm.weight}
    tensors["lm_head.weight"] = w.head.weight
    mixer, channel = s.layers[0].mixer, s.layers[0].channel
    assert isinstance(mixer, AttentionSpec) and isinstance(channel, DenseSpec)
    q, kv = mixer.heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim
    for i, block in enumerate(w.blocks):
        at = f"model.layers.{i}."
        assert isinstance(block.mixer, Attention) and isinstance(block.channel, Dense)
        linears = (block.mixer.mix, block.mixer.out, block.channel.gate_up, block.channel.down)
        qkv, out, gate_up, down = (linear.weight for linear in linears if linear.weight is not None)
        for name, norm in (("input_layernorm", block.before_mixer), ("post_attention_layernorm", block.before_channel)):
            assert norm is not None and norm.weight is not None
            tensors[f"{at}{name}.weight"] = norm.weight
        for name, part in zip("qkv", qkv.split([q, kv, kv]), strict=True):
            tensors[f"{at}self_attn.{name}_proj.weight"] = part
        tensors[at + "self_attn.o_proj.weight"] = out
        gate, up = gate_up.chunk(2)
        tensors[at + "mlp.gate_proj.weight"], tensors[at + "mlp.up_proj.weight"] = gate, up
        tensors[at + "mlp.down_proj.weight"] = down
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    config = {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": s.width,
        "num_hidden_layers": layers,
        "num_attention_heads": mixer.heads,
        "num_key_value_heads": mixer.kv_heads,
        "head_dim": mixer.head_dim,
        "intermediate_size": channel.width,
        "rms_norm_eps": s.eps,
        "rope_theta": 10000.0,
        "max_position_embeddings": context,
        "eos_token_id": 258,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(tokenizer_json(extra))
    settings = {"chat_template": CHATML, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
