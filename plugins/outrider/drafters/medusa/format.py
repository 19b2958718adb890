"""The files of heads: alone in a folder (safetensors, or the published pickle), or beside the target's own weights.

The count of heads is that of the tensors: published configs say 2 where there are 5.

Medusa: head k is `{k}.{i}.linear` [d, d] for each layer i, and the output matrix `{k}.{layers}.weight` [V, d]. Where the
config says `tied_to_target` there are no output matrices: they are the target's, or its rows of the words in `d2t` [Vd].

Hydra: head k is `hydra_mlp.{k}.0.linear` and `.res_connection` [d, (k + 2) d], `hydra_mlp.{k}.{i}.linear` [d, d] for more
layers, and the output matrix `hydra_lm_head.{k}` [V, d]. All have biases, but for Medusa's output matrix.

Hydra++ (prefix-mlp): the heads of Hydra, where a dropout stood before every layer and counts: `hydra_mlp.{k}.{1 + 2 i}` and
`hydra_lm_head.{k}.1`; and one layer of a llama with a norm after it, `prefix_embeding_layer.layers.0` and `.norm`. How many
attention heads that has, and its rope, are the target's.

Letters: `V` vocabulary, `Vd` words that heads know, `d` width of the target.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.drafting import ModelInfo
from outrider.core.drafting.files import DraftConfig, DraftFiles, DraftSpec, Shapes, open_draft

from .names import OWN
from .tree import Choice, checked

if TYPE_CHECKING:
    from torch import Tensor

AGAIN = "Fetch the heads again."
PUBLISHED = tuple(f"{kind}_lm_head.{ending}" for ending in ("safetensors", "pt") for kind in ("medusa", "hydra"))
TABLES = ("d2t", "t2d")  # distances from words of a reduced head to the target's ids, and marks at these
_MEDUSA = re.compile(r"(\d+)\.(\d+)\.(?:linear\.weight|linear\.bias|weight)")
_HYDRA = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.(?:linear|res_connection)\.(?:weight|bias)")
_HYDRA_OUT = re.compile(r"hydra_lm_head\.(\d+)\.(?:1\.)?(?:weight|bias)")
PREFIX = "prefix_embeding_layer."  # as published
_LAYER = f"{PREFIX}layers.0."
# what was saved along and is not read: the target's own embedding, one that no id ever reached, and a constant
_IDLE = ("input_embed_fn.weight", f"{PREFIX}embed_tokens.weight", f"{_LAYER}self_attn.rotary_emb.inv_freq")


class HeadFiles(ABC):
    """The heads of one source, every tensor accounted for: by the kind of head it has the names and shapes of all.

    Raises ModelError where there are no such heads, BrokenFileError where a tensor is missing, misshapen or too many.
    """

    kind = ""

    def __init__(self, files: DraftFiles) -> None:
        self.source, self.config, self.where, self.told = files, files.config, files.path, files.settings
        self._names = files.holds.difference(self.extra_tensors)
        self.heads, self.layers = self._count()
        self.vocab, self.width = self._sizes()
        wanted = self._shapes()
        for name in sorted(wanted.keys() ^ self._names):
            what = "lacks" if name in wanted else "holds beside its heads"
            raise BrokenFileError(f"{self.where} {what} the tensor {name}.", AGAIN)
        for name, shape in wanted.items():
            found = self._size(name)
            if found != shape:
                raise BrokenFileError(f"{self.where}: {name} has the shape {list(found)}, not {list(shape)}.", AGAIN)

    @property
    def label(self) -> str:
        """What a person calls this kind."""
        return self.kind

    @property
    def extra_tensors(self) -> Sequence[str]:
        """Tensors that may be there and are none of a head's."""
        return ()

    @property
    def tied(self) -> bool:
        """Whether output matrices are the target's, and left out."""
        return False

    def misfit(self, model: ModelInfo) -> str | None:
        """Why these heads do not fit `model`; None if they do."""
        if self.width != model.width:
            return f"its heads are made for width {self.width}, not {model.width}"
        if self.vocab != model.vocab:
            return f"its heads know {self.vocab} tokens, not {model.vocab}"
        return None

    def choices(self) -> list[Choice] | None:
        """The tree that the config fixes, as far as the heads reach. Raises ModelError if it is none."""
        key = f"{self.kind.lower()}_choices"
        return None if self.config.get(key) is None else checked(self.config[key], key, self.heads, self.vocab)

    def numel(self) -> int:
        """Weights of all heads."""
        return sum(prod(shape) for shape in self._shapes().values())

    def load(self, name: str) -> Tensor:
        """One tensor, as stored. Raises BrokenFileError if it holds numbers that are not finite."""
        return self.source.load(name)

    def close(self) -> None:
        """Let go of the files."""
        self.source.close()

    @abstractmethod
    def block(self, head: int, layer: int) -> str:
        """Name of a layer of a head."""

    @abstractmethod
    def out(self, head: int) -> str:
        """Name of a head's output matrix."""

    def _sizes(self) -> tuple[int, int]:
        """Vocabulary and width, from the first output matrix."""
        out = f"{self.out(0)}.weight"
        size = self._size(out)
        if len(size) != 2:
            what = f"{out} has {len(size)} axes, not 2" if out in self._names else f"the tensor {out} is missing"
            raise BrokenFileError(f"{self.where}: {what}.", AGAIN)
        return size[0], size[1]

    @abstractmethod
    def _count(self) -> tuple[int, int]: ...

    @abstractmethod
    def _shapes(self) -> Shapes: ...

    def _size(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, () if there is none of that name."""
        return self.source.size(name)

    def _strange(self, names: Sequence[str]) -> ModelError:
        what = f"a tensor {min(names)}, which no {self.kind} head has" if names else f"no {self.kind} heads"
        return ModelError(f"{self.where} holds {what}.", f"Give a folder with {self.kind.lower()}_lm_head.pt.")


class MedusaFiles(HeadFiles):
    """Heads that do not see each other's guesses."""

    kind = "Medusa"

    @property
    def extra_tensors(self) -> Sequence[str]:
        """As `HeadFiles`."""
        return TABLES if self.tied else ()

    @property
    def tied(self) -> bool:
        """As the config says."""
        return self.told.flag("tied_to_target")

    def words(self) -> Tensor | None:
        """The target's ids [Vd] that tied heads know; None: all. Raises BrokenFileError."""
        return self.source.words(self.vocab) if self.tied and "d2t" in self.source.holds else None

    def block(self, head: int, layer: int) -> str:
        """Name of a layer of a head."""
        return f"{head}.{layer}"

    def out(self, head: int) -> str:
        """Name of a head's output matrix."""
        return f"{head}.{self.layers}"

    def _count(self) -> tuple[int, int]:
        matches = {name: _MEDUSA.fullmatch(name) for name in self._names}
        strange = [name for name, match in matches.items() if match is None]
        if strange or not matches:
            raise self._strange(strange)
        places = [(int(match[1]), int(match[2])) for match in matches.values() if match]
        return 1 + max(head for head, _ in places), max(layer for _, layer in places) + self.tied

    def _sizes(self) -> tuple[int, int]:
        if not self.tied:
            return super()._sizes()
        size = self._size(f"{self.block(0, 0)}.linear.weight")
        if len(size) != 2:
            raise BrokenFileError(f"{self.where} does not say how wide its heads are.", AGAIN)
        return self.told.integer("vocab_size"), size[0]

    def _shapes(self) -> Shapes:
        shapes: Shapes = {}
        for head in range(self.heads):
            for layer in range(self.layers):
                shapes[f"{self.block(head, layer)}.linear.weight"] = (self.width, self.width)
                shapes[f"{self.block(head, layer)}.linear.bias"] = (self.width,)
            if not self.tied:
                shapes[f"{self.out(head)}.weight"] = (self.vocab, self.width)
        return shapes


class HydraFiles(HeadFiles):
    """Heads of plain layers that see the guesses before theirs, in Hydra++ (`prefixed`) behind a layer of attention."""

    kind = "Hydra"

    @property
    def extra_tensors(self) -> Sequence[str]:
        """As `HeadFiles`."""
        return _IDLE

    @property
    def label(self) -> str:
        """What a person calls this kind."""
        return "Hydra++" if self.prefixed else self.kind

    @property
    def prefixed(self) -> bool:
        """Whether states go through a layer first."""
        told = self.told.is_word("hydra_head_arch", "prefix-mlp")
        return told or any(name.startswith(PREFIX) for name in self._names)

    @property
    def offset(self) -> int:
        """How many layers before the last one the state is taken from. Raises ModelError if it is no such number."""
        return self.told.layer_number("hidden_state_offset", 0, 0)

    def block(self, head: int, layer: int) -> str:
        """Name of a layer of a head."""
        return f"hydra_mlp.{head}.{1 + 2 * layer if self.prefixed else layer}"

    def out(self, head: int) -> str:
        """Name of a head's output matrix."""
        return f"hydra_lm_head.{head}.1" if self.prefixed else f"hydra_lm_head.{head}"

    def layer(self) -> Shapes:
        """Names and shapes of the layer before the heads; none where there is no such layer."""
        if not self.prefixed:
            return {}
        d = self.width
        q, kv, inner = (
            self._rows(f"{_LAYER}{part}_proj.weight") for part in ("self_attn.q", "self_attn.k", "mlp.gate")
        )
        shapes: Shapes = {f"{PREFIX}norm.weight": (d,)}
        shapes |= {f"{_LAYER}{norm}_layernorm.weight": (d,) for norm in ("input", "post_attention")}
        shapes |= {
            f"{_LAYER}self_attn.{part}_proj.weight": (size, d) for part, size in zip("qkv", (q, kv, kv), strict=True)
        }
        shapes |= {f"{_LAYER}mlp.{part}_proj.weight": (inner, d) for part in ("gate", "up")}
        return shapes | {f"{_LAYER}self_attn.o_proj.weight": (d, q), f"{_LAYER}mlp.down_proj.weight": (d, inner)}

    def spec(self, model: ModelInfo) -> DraftSpec:
        """That layer as a llama of its own, with the heads, eps and rope of `model`. Raises ModelError if its config has none."""
        inner = self.layer()[f"{_LAYER}mlp.gate_proj.weight"][0]
        sizes = {"hidden_size": self.width, "vocab_size": self.vocab, "intermediate_size": inner}
        return DraftConfig.of_model(model, **sizes, attention_bias=False, mlp_bias=False).layers([0])

    def misfit(self, model: ModelInfo) -> str | None:
        """As `HeadFiles`; the layer has to have the target's attention heads."""
        problem = super().misfit(model)
        if problem or not self.prefixed:
            return problem
        if not DraftConfig.of_model(model).has("num_attention_heads"):
            return f"its layer has the attention heads of its target, and nothing says how many {model.name} has"
        mixer, shapes = self.spec(model).mixer, self.layer()
        for part, heads in (("q", mixer.heads), ("k", mixer.kv_heads)):
            rows = shapes[f"{_LAYER}self_attn.{part}_proj.weight"][0]
            if rows != heads * mixer.head_dim:
                return f"its layer has a {part}_proj of {rows} rows, and {model.name} {heads} heads of {mixer.head_dim}"
        return None

    def _rows(self, name: str) -> int:
        return next(iter(self._size(name)), 0)

    def _count(self) -> tuple[int, int]:
        kind = self.told.word("hydra_head_arch", default="mlp")
        known = kind in ("mlp", "prefix-mlp")
        if not known or not self.told.flag("grounded_heads", True):
            what = f"{kind} without grounded_heads" if known else kind
            raise ModelError(
                f"{self.where} holds Hydra heads of the kind {what}, which is not read.",
                "Take grounded mlp or prefix-mlp heads.",
            )
        blocks = {
            name: _HYDRA.fullmatch(name)
            for name in self._names
            if _HYDRA_OUT.fullmatch(name) is None and not name.startswith(PREFIX)
        }
        strange = [name for name, match in blocks.items() if match is None]
        if strange or not blocks:
            raise self._strange(strange)
        places = [(int(match[1]), int(match[2])) for match in blocks.values() if match]
        last = max(layer for _, layer in places)
        return 1 + max(head for head, _ in places), 1 + (last // 2 if self.prefixed else last)

    def _shapes(self) -> Shapes:
        shapes = self.layer()
        for head in range(self.heads):
            first, out = self.block(head, 0), self.out(head)
            for part in ("linear", "res_connection"):
                shapes[f"{first}.{part}.weight"] = (self.width, (head + 2) * self.width)
                shapes[f"{first}.{part}.bias"] = (self.width,)
            for layer in range(1, self.layers):
                shapes[f"{self.block(head, layer)}.linear.weight"] = (self.width, self.width)
                shapes[f"{self.block(head, layer)}.linear.bias"] = (self.width,)
            shapes[f"{out}.weight"] = (self.vocab, self.width)
            shapes[f"{out}.bias"] = (self.vocab,)
        return shapes


def open_heads(path: Path) -> HeadFiles:
    """The heads in a folder, Medusa's or Hydra's by the names of their tensors. Raises as `HeadFiles`."""
    files = open_draft(path, *PUBLISHED, again=AGAIN, finite=True)
    try:
        if files.config.get("hydra_head_arch") or any(name.startswith("hydra_") for name in files.holds):
            return HydraFiles(files)
        return MedusaFiles(files.below(OWN) if any(name.startswith(OWN) for name in files.holds) else files)
    except ModelError:
        files.close()
        raise
