"""Containers that show nothing of their own: all their lines are alike, so one is made and not a screen full in each frame."""

from __future__ import annotations

from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

_UNSEEN = ("", "none", "hidden", "blank")


class Bare(Widget):
    """Comes last among the bases of a container: styles follow the first. One that has a border draws like any other."""

    _line: tuple[tuple[int, Style], Strip] | None = None

    def render_lines(self, crop: Region) -> list[Strip]:
        """The same blank line for each."""
        if any(kind not in _UNSEEN for kind, _ in self.styles.border) or self.styles.outline_top[0]:
            return super().render_lines(crop)
        key = crop.width, self.visual_style.rich_style
        if self._line is None or self._line[0] != key:
            self._line = key, Strip.blank(*key)
        strip = self._line[1]
        for each in self.get_line_filters():
            strip = strip.apply_filter(each, self.background_colors[1])
        return [strip] * crop.height
