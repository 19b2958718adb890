"""Whether what a loaded drafter says of itself makes sense; answers rely on it without looking again."""

from __future__ import annotations

from .contract import Drafter, Needs, Shape


def flaw(drafter: Drafter, layers: int) -> str | None:
    """What is wrong with a drafter's `needs` and `shape` for a target of so many layers, as the end of a sentence."""
    needs, shape = drafter.needs, drafter.shape
    if not isinstance(needs, Needs) or not isinstance(shape, Shape):
        return "no Needs and no Shape"
    strange = [number for number in needs.hidden if not _count(number, 0) or number > layers]
    if strange:
        return f"that it needs the state {strange[0]!r}; the model's states go from 0 to {layers}"
    strange = [layer for layer in needs.kv if not _count(layer, 0) or layer >= layers]
    if strange:
        return (
            f"that it needs the keys and values of layer {strange[0]!r}; the model's layers go from 0 to {layers - 1}"
        )
    if not _count(needs.early, 0) or needs.early > layers:
        return f"that it needs the first {needs.early!r} of {layers} layers"
    if not _count(shape.nodes, 1) or not _count(shape.depth, 1):
        return f"drafts of {shape.nodes!r} nodes and depth {shape.depth!r}"
    return None


def _count(value: object, least: int) -> bool:
    return isinstance(value, int) and value >= least
