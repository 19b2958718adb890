"""Where a published tensor is in a GGUF file, and how it is made of what is there. Loads no torch.

A stored tensor is seen as a matrix along its last axis, so that a row is a row of whole blocks. A place takes rows of one or
more stored tensors, in an order, which needs no look into the blocks. Only what rows cannot express is a change of columns,
a rearrangement or arithmetic.

Letters: `E` experts, `o` outputs, `i` inputs, `H` heads, `h` head size, `C` channels, `K` taps of a filter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from outrider.core.base.errors import BrokenFileError

from .reader import AGAIN, GGUFFile, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]
Order = Callable[[int], list[int]]  # number of rows -> the rows to take, in order


@dataclass(frozen=True, slots=True)
class Part:
    """Rows `first` to `last` of a stored tensor."""

    stored: str
    first: int = 0
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A published tensor: parts, each [rows, columns], one below the other, and what becomes of them, step by step."""

    shape: Shape
    parts: tuple[Part, ...]
    order: Order | None = None  # of the rows
    columns: Order | None = None
    turned: bool = False  # experts [E, o, i] are published as [E, i, o]
    merge: Callable[..., Tensor] | None = None  # instead of all that: shape and parts -> the tensor
    value: Callable[[Tensor], Tensor] | None = None  # arithmetic on each number, done in float32 or wider


@dataclass(frozen=True, slots=True)
class Source:
    """What rules look at: the file and the config that was made of its metadata."""

    file: GGUFFile
    config: Mapping[str, Any]

    def broken(self, stored: str, why: str) -> BrokenFileError:
        """The error for a tensor that does not fit."""
        return BrokenFileError(f"{self.file.path}: tensor {stored!r} {why}.", AGAIN)

    def partner(self, stored: str, old: str, new: str) -> TensorInfo:
        """The tensor that `stored` is only half of."""
        name = stored.replace(old, new)
        if name not in self.file.tensors:
            raise self.broken(stored, f"lacks its other half {name!r}")
        return self.file.tensors[name]


Rule = Callable[[Source, str, TensorInfo], dict[str, Place]]  # published name, stored tensor -> what it stands for


def plain(source: Source, name: str, tensor: TensorInfo) -> dict[str, Place]:
    """As it is."""
    return {name: Place(tensor.shape, (Part(tensor.name),))}


def absent(source: Source, name: str, tensor: TensorInfo) -> dict[str, Place]:
    """Nothing: another tensor's rule takes this one along, or the config does."""
    return {}


def one_row(source: Source, name: str, tensor: TensorInfo) -> dict[str, Place]:
    """A vector that is published as a matrix of one row."""
    columns = math.prod(tensor.shape)
    if tensor.shape not in ((columns,), (1, columns)):
        raise source.broken(tensor.name, "is not one row")
    return {name: Place((1, columns), (Part(tensor.name),))}


def halves(heads: str) -> Rule:
    """Rows of each head from pairs (0, h/2, 1, h/2 + 1, …) back to halves. `heads`: the config key that counts them."""

    def rule(source: Source, name: str, tensor: TensorInfo) -> dict[str, Place]:
        rows, count = tensor.rows, source.config[heads]
        if rows % (2 * count):
            raise BrokenFileError(f"{source.file.path}: {rows} rows of {name} are not {count} heads.", AGAIN)
        return {name: Place(tensor.shape, (Part(tensor.name),), partial(from_pairs, count))}

    return rule


def from_pairs(heads: int, rows: int) -> list[int]:
    """Of each head the even rows, then the odd ones."""
    size = rows // heads
    return [start + i for start in range(0, rows, size) for half in (0, 1) for i in range(half, size, 2)]


def minus_one(source: Source, name: str, tensor: TensorInfo) -> dict[str, Place]:
    """A norm that the converter added one to. What it added is taken away exactly."""
    return {name: Place(tensor.shape, (Part(tensor.name),), value=_less_one)}


def _less_one(weight: Tensor) -> Tensor:
    return weight - 1


def decay(source: Source, name: str, tensor: TensorInfo) -> dict[str, Place]:
    """A_log, stored as -exp(A_log)."""
    return {name: Place(tensor.shape, (Part(tensor.name),), value=_log)}


def _log(rate: Tensor) -> Tensor:
    return rate.double().neg().log()


def filters(source: Source, name: str, tensor: TensorInfo) -> dict[str, Place]:
    """A depthwise convolution, [C, K] published as [C, 1, K]."""
    if len(tensor.shape) != 2:
        raise source.broken(tensor.name, f"of shape {tensor.shape} is not a filter for each channel")
    return {name: Place((tensor.shape[0], 1, tensor.shape[1]), (Part(tensor.name),))}


def grouped(inner: Rule, size_key: str = "") -> Rule:
    """What `inner` says, with the value heads of one key head together again.

    `size_key`: the config key with the rows of a head, one if empty. Rows before the value heads stay where they are.
    """

    def rule(source: Source, name: str, tensor: TensorInfo) -> dict[str, Place]:
        keys, values = source.config["linear_num_key_heads"], source.config["linear_num_value_heads"]
        size = source.config[size_key] if size_key else 1
        if tensor.rows < values * size:
            raise source.broken(tensor.name, f"has {tensor.rows} rows, too few for {values} heads")
        order = partial(from_tiled, keys, values, size)
        return {name: replace(place, order=order) for name, place in inner(source, name, tensor).items()}

    return rule


def from_tiled(keys: int, values: int, size: int, rows: int) -> list[int]:
    """The last `values` heads of `size` rows from tiled (the first of each key head, the second, …) back to grouped."""
    first = rows - values * size
    heads = [turn * keys + key for key in range(keys) for turn in range(values // keys)]
    return [*range(first), *(first + head * size + i for head in heads for i in range(size))]


def grouped_inputs(source: Source, name: str, tensor: TensorInfo) -> dict[str, Place]:
    """A projection whose columns are value heads."""
    config = source.config
    values, size = config["linear_num_value_heads"], config["linear_value_head_dim"]
    if len(tensor.shape) != 2 or tensor.shape[1] != values * size:
        raise source.broken(tensor.name, f"is not {values} heads of {size} wide")
    order = partial(from_tiled, config["linear_num_key_heads"], values, size)
    return {name: Place(tensor.shape, (Part(tensor.name),), columns=order)}


def beta_and_alpha(source: Source, name: str, tensor: TensorInfo) -> dict[str, Place]:
    """Qwen3-Next: by key head the rows of b, then those of a. `name` ends in `in_proj_ba.weight`."""
    keys, values = source.config["linear_num_key_heads"], source.config["linear_num_value_heads"]
    if tensor.rows != 2 * values or len(tensor.shape) != 2:
        raise source.broken(tensor.name, f"does not have two rows for each of {values} heads")
    made = {}
    for turn, letter in enumerate("ba"):
        place = Place((values, tensor.shape[1]), (Part(tensor.name),), partial(_turns, keys, turn))
        made[name.replace("in_proj_ba", f"in_proj_{letter}")] = place
    return made


def _turns(keys: int, turn: int, rows: int) -> list[int]:
    each = rows // keys // 2
    return [(2 * key + turn) * each + i for key in range(keys) for i in range(each)]


def experts(names: tuple[str, ...] = ("",)) -> Rule:
    """Stacked experts [E, o, i] as single ones; `*` in the published name is the number, `names` replace `?`.

    With two names the rows of each expert are those of the first, then as many of the second.
    """

    def rule(source: Source, name: str, tensor: TensorInfo) -> dict[str, Place]:
        count = expert_count(source)
        if len(tensor.shape) != 3 or tensor.shape[0] != count or tensor.shape[1] % len(names):
            raise source.broken(tensor.name, f"of shape {tensor.shape} is not {count} experts")
        rows, inputs = tensor.shape[1] // len(names), tensor.shape[2]
        made = {}
        for at in range(count * len(names)):
            expert, which = divmod(at, len(names))
            published = name.replace("*", str(expert)).replace("?", names[which])
            made[published] = Place((rows, inputs), (Part(tensor.name, at * rows, (at + 1) * rows),))
        return made

    return rule


def expert_count(source: Source) -> int:
    """Experts of the model, a bounded number."""
    config = source.config
    count = config.get("num_experts") or config.get("n_routed_experts") or config.get("num_local_experts") or 0
    if not 1 <= count <= 4096:
        raise BrokenFileError(f"{source.file.path} has expert tensors and counts {count} experts.", AGAIN)
    return count


def interleaved(source: Source, name: str, tensor: TensorInfo) -> dict[str, Place]:
    """gpt-oss: gate and up as they are published, [E, i, 2 o] with the two in turn, or their biases [E, 2 o]."""
    up, count = source.partner(tensor.name, "ffn_gate_exps", "ffn_up_exps"), expert_count(source)
    if up.shape != tensor.shape or tensor.shape[0] != count or len(tensor.shape) not in (2, 3):
        raise source.broken(tensor.name, f"of shape {tensor.shape} does not fit {count} experts or its other half")
    parts = Part(tensor.name), Part(up.name)
    if len(tensor.shape) == 2:
        return {name: Place((count, 2 * tensor.shape[1]), parts, merge=_biases_in_turn)}
    _, outputs, inputs = tensor.shape
    return {name: Place((count, inputs, 2 * outputs), parts, _in_turn, turned=True)}


def _in_turn(rows: int) -> list[int]:
    return [at for i in range(rows // 2) for at in (i, rows // 2 + i)]


def _biases_in_turn(shape: Shape, gate: Tensor, up: Tensor) -> Tensor:
    import torch

    return torch.stack((gate, up), -1).view(shape)


def turned(source: Source, name: str, tensor: TensorInfo) -> dict[str, Place]:
    """gpt-oss: [E, o, i] published as [E, i, o]."""
    if len(tensor.shape) != 3 or tensor.shape[0] != expert_count(source):
        raise source.broken(tensor.name, f"of shape {tensor.shape} does not hold all experts")
    experts, outputs, inputs = tensor.shape
    return {name: Place((experts, inputs, outputs), (Part(tensor.name),), turned=True)}


def key_value_up(source: Source, name: str, tensor: TensorInfo) -> dict[str, Place]:
    """Latent attention: keys [H, rank, nope] and values [H, v, rank] as one projection [H (nope + v), rank]."""
    values = source.partner(tensor.name, "attn_k_b", "attn_v_b")
    heads = source.config["num_attention_heads"]
    fits = len(tensor.shape) == len(values.shape) == 3 and tensor.shape[:2] == values.shape[::2]
    if not fits or tensor.shape[0] != heads:
        raise source.broken(tensor.name, f"of shape {tensor.shape} does not fit its other half")
    shape = (heads * (tensor.shape[2] + values.shape[1]), tensor.shape[1])
    return {name: Place(shape, (Part(tensor.name), Part(values.name)), merge=partial(_both_up, heads))}


def _both_up(heads: int, shape: Shape, keys: Tensor, values: Tensor) -> Tensor:
    import torch

    both = keys.view(heads, shape[1], -1).transpose(1, 2), values.view(heads, -1, shape[1])
    return torch.cat(both, 1).view(shape)
