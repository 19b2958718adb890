"""Style sheets that are parsed once for each set of colours: Textual parses them three times while it starts."""

from __future__ import annotations

from typing import ClassVar

from textual.cache import LRUCache
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

_SOURCES = 512  # style sheets of widgets and files
_THEMES = 16


class Styling(Stylesheet):
    """Keeps what was parsed for every theme that was on."""

    _parsed: ClassVar[LRUCache[str, LRUCache[tuple[object, ...], list[RuleSet]]]] = LRUCache(_THEMES)

    def __init__(self, variables: dict[str, str]) -> None:
        super().__init__(variables=variables)
        self._stale = False
        self._use_parsed()

    def set_variables(self, variables: dict[str, str]) -> None:
        """Take other colours; the same ones change nothing."""
        if variables != self._variables:
            self._parse_cache = LRUCache(_SOURCES)  # the one of the colours before stays as it is
            super().set_variables(variables)
            self._stale = True
            self._use_parsed()

    def reparse(self) -> None:
        """Only if colours or sources are others."""
        if self._stale or self._require_parse:
            self._stale = False
            self.parse()

    def _use_parsed(self) -> None:
        key = repr(sorted(self._variables.items()))
        if key not in self._parsed:
            self._parsed[key] = LRUCache(_SOURCES)
        self._parse_cache = self._parsed[key]
