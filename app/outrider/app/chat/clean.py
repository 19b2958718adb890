"""The name that the chat has for text made safe."""

from outrider.app.text import sanitize as harmless

__all__ = ["harmless"]
