"""Keys of a node that change while the program runs, and our own drivers, which Textual's public face does not offer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from textual.binding import Binding, BindingsMap
from textual.dom import DOMNode
from textual.driver import Driver


def rebind(node: DOMNode, bindings: Iterable[Binding]) -> None:
    """Give a node these keys in place of its own. A Textual keymap cannot give keys to what had none, nor take all away."""
    node._bindings = BindingsMap(bindings)


def unbind(node: DOMNode, key: str) -> None:
    """Take a key from a node."""
    node._bindings.key_to_bindings.pop(key, None)


def terminal_driver() -> type[Driver] | None:
    """What drives the terminal; None leaves it to the screen library."""
    if sys.platform == "win32" or os.environ.get("TEXTUAL_DRIVER"):
        return None
    from outrider.app.chat.driver import TerminalDriver

    return TerminalDriver
