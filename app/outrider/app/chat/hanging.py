"""A text with a hanging sign: one widget for a list item, where a row of nested containers would be slow."""

from __future__ import annotations

from dataclasses import replace

from textual.content import Content
from textual.css.styles import RulesMap
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, Visual


class Hanging(Visual):
    """`body` wrapped beside `sign`, which stands in the first line only."""

    def __init__(self, sign: Content, body: Content) -> None:
        self.sign, self.body = sign, body

    def render_strips(self, width: int, height: int | None, style: Style, options: RenderOptions) -> list[Strip]:
        """Lines of the body, each behind the sign or as much space."""
        indent = self.sign.cell_length
        lines = self.body.render_strips(max(1, width - indent), height, style, options)
        bare = replace(options, selection=None, selection_style=None)
        first = self.sign.render_strips(indent, 1, style, bare)
        blank = Strip.blank(indent, style.rich_style)
        if not lines:
            return first
        return [Strip.join([first[0] if y == 0 else blank, line]) for y, line in enumerate(lines)]

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        """Both beside each other."""
        return self.sign.cell_length + self.body.get_optimal_width(rules, container_width)

    def get_height(self, rules: RulesMap, width: int) -> int:
        """That of the body, at least one line."""
        return max(1, self.body.get_height(rules, max(1, width - self.sign.cell_length)))
