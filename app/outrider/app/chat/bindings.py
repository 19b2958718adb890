"""Keys of a node that change while the program runs, which Textual's public face does not offer."""

from __future__ import annotations

from collections.abc import Iterable

from textual.binding import Binding, BindingsMap
from textual.dom import DOMNode


def rebind(node: DOMNode, bindings: Iterable[Binding]) -> None:
    """Give a node these keys in place of its own. A Textual keymap cannot give keys to what had none, nor take all away."""
    node._bindings = BindingsMap(bindings)


def unbind(node: DOMNode, key: str) -> None:
    """Take a key from a node."""
    node._bindings.key_to_bindings.pop(key, None)
