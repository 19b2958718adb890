"""What reaches behind Textual's public face, beside `bindings`: Markdown blocks that carry marks.

Textual builds a block's content from an inline token; here the marks of that token's source are laid over it. The marks
are named styles, resolved when painted, so a mode or theme change needs a repaint and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator

from markdown_it.token import Token
from textual.app import ComposeResult
from textual.containers import VerticalGroup
from textual.content import Content, Span
from textual.selection import Selection
from textual.style import Style
from textual.visual import Visual
from textual.widget import Widget
from textual.widgets import Markdown, Static
from textual.widgets import _markdown as blocks

from outrider.app.chat import mapping
from outrider.app.chat.blocks import Piece
from outrider.app.chat.hanging import Hanging
from outrider.app.chat.marks import Run, Runs, project
from outrider.app.chat.palette import STYLE_NAMES, Palette

_SIGN = "$text-primary"


def spans_of(runs: list[Run], shift: int = 0) -> list[Span]:
    """Content spans for those runs that have a style, moved by `shift`."""
    return [
        Span(run.start + shift, run.end + shift, "." + STYLE_NAMES[run.kind]) for run in runs if run.kind in STYLE_NAMES
    ]


def marked(content: Content, runs: list[Run]) -> Content:
    """`content` with marks over its own styles."""
    spans = spans_of(runs)
    return Content(content.plain, [*content.spans, *spans]) if spans else content


class MarkedText(Static):
    """A plain text with marks: what of a reply is not settled yet."""

    def __init__(self, palette: Palette, *, classes: str | None = None) -> None:
        super().__init__("", markup=False, classes=classes)
        self._palette = palette

    def show(self, text: str, runs: Runs, start: int) -> None:
        """Show `text`, which begins at `start` of what `runs` cover."""
        spans = spans_of(list(runs.between(start, start + len(text))), -start)
        self.update(Content(text, spans))

    def get_visual_style(self, *component_classes: str, partial: bool = False) -> Style:
        """Also knows the marks."""
        found = self._palette.style(component_classes[0]) if len(component_classes) == 1 else None
        return found or super().get_visual_style(*component_classes, partial=partial)


class _Inline(blocks.MarkdownBlock):
    """A block whose text is one inline token. Comes last among the bases: styles follow the first one."""

    def _token_to_content(self, token: Token) -> Content:
        content = super()._token_to_content(token)
        document = self._markdown
        return document.mark_inline(self, token, content) if isinstance(document, Settled) else content


class _Paragraph(blocks.MarkdownParagraph, _Inline):
    """A paragraph, or the first one of a list item: then the item's sign hangs before it."""

    sign: Content | None = None

    def render(self) -> Visual:
        """With the sign, if it has one."""
        body = self.visual
        return Hanging(self.sign, body) if self.sign is not None and isinstance(body, Content) else body

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Text without the sign."""
        return selection.extract(self._content.plain), "\n"


class _H1(blocks.MarkdownH1, _Inline):
    pass


class _H2(blocks.MarkdownH2, _Inline):
    pass


class _H3(blocks.MarkdownH3, _Inline):
    pass


class _H4(blocks.MarkdownH4, _Inline):
    pass


class _H5(blocks.MarkdownH5, _Inline):
    pass


class _H6(blocks.MarkdownH6, _Inline):
    pass


class _TH(blocks.MarkdownTH, _Inline):
    pass


class _TD(blocks.MarkdownTD, _Inline):
    pass


class _Item(blocks.MarkdownOrderedListItem):
    """A list item that can take its number from the settled piece, where the text's own restarts the count."""

    def __init__(self, markdown: Markdown, token: Token, bullet: str) -> None:
        number = markdown.take_number(token) if isinstance(markdown, Settled) else None
        super().__init__(markdown, token, bullet if number is None else str(number))


def _item(block: blocks.MarkdownListItem, sign: str) -> Iterator[Widget]:
    """The widgets of one list item: a single one for the usual case, a paragraph."""
    first, *rest = block._blocks or [Static("", markup=False)]
    if not isinstance(first, _Paragraph):
        first, rest = Static(Content.styled(sign, _SIGN), markup=False), block._blocks
    else:
        first.sign = Content.styled(sign, _SIGN)
    yield first
    if rest:
        inner = VerticalGroup(*rest, classes="rest")
        inner.styles.padding = (0, 0, 0, len(sign))
        yield inner


class _BulletList(blocks.MarkdownBulletList):
    def compose(self) -> ComposeResult:
        for block in self._blocks:
            if isinstance(block, blocks.MarkdownListItem):
                yield from _item(block, f" {block.bullet}")
        self._blocks.clear()


class _OrderedList(blocks.MarkdownOrderedList):
    def compose(self) -> ComposeResult:
        items = [block for block in self._blocks if isinstance(block, blocks.MarkdownListItem)]
        first = int(items[0].bullet) if items else 1
        width = max(4, len(f"{first + len(items) - 1}. "))
        for number, block in enumerate(items, first):
            yield from _item(block, f"{number}. ".rjust(width))
        self._blocks.clear()


class _Fence(blocks.MarkdownFence):
    """A code block; a name that no lexer knows, or none at all, is shown as it is."""

    def __init__(self, markdown: Markdown, token: Token, code: str) -> None:
        super().__init__(markdown, token, code)
        self._colored_for = self._color_key()
        self.set_content(self._highlighted_code)

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        """Colour by the first word of the fence's info; guessing a language is slow and often wrong."""
        name = language.split(maxsplit=1)[0] if language.strip() else "text"
        content = super().highlight(code.expandtabs(4), name, ansi, dark)
        return Content(content.plain, [_calm(span) for span in content.spans])

    def set_content(self, content: Content) -> None:
        """Lay the marks over whatever comes, also before the code has a widget."""
        self._highlighted_code = self._with_marks(content)
        if self.is_mounted:
            super().set_content(self._highlighted_code)

    def notify_style_update(self) -> None:
        """Colour again only when it would come out differently."""
        if self._color_key() != self._colored_for:
            self._colored_for = self._color_key()
            super().notify_style_update()
        else:
            super(blocks.MarkdownFence, self).notify_style_update()

    def _color_key(self) -> tuple[bool, bool]:
        return self.app.native_ansi_color, self.app.current_theme.dark

    def _with_marks(self, content: Content) -> Content:
        document = self._markdown
        return document.mark_code(self._token, content) if isinstance(document, Settled) else content


def _calm(span: Span) -> Span:
    """Without underlines, which stand for accepted text where colours are few."""
    if isinstance(span.style, str) and "underline" in span.style:
        return Span(span.start, span.end, span.style.replace("underline", "").strip())
    return span


_BLOCKS: dict[str, type[blocks.MarkdownBlock]] = {
    "paragraph_open": _Paragraph,
    "h1": _H1,
    "h2": _H2,
    "h3": _H3,
    "h4": _H4,
    "h5": _H5,
    "h6": _H6,
    "th_open": _TH,
    "td_open": _TD,
    "bullet_list_open": _BulletList,
    "ordered_list_open": _OrderedList,
    "list_item_ordered_open": _Item,
    "fence": _Fence,
    "code_block": _Fence,
}


class Settled(Markdown):
    """One settled piece of a reply as rendered Markdown, with its marks."""

    def __init__(self, piece: Piece, runs: Runs, palette: Palette) -> None:
        super().__init__(piece.source, parser_factory=mapping.parser, open_links=False)
        self.set_class(piece.goes_on, "-goes-on")
        self._piece, self._runs, self._palette = piece, runs, palette
        self._starts = mapping.starts_of_lines(piece.source)
        self._cells: dict[int, int] = {}
        self._number = piece.number

    @property
    def piece(self) -> Piece:
        """What it shows."""
        return self._piece

    def get_visual_style(self, *component_classes: str, partial: bool = False) -> Style:
        """Also knows the marks."""
        found = self._palette.style(component_classes[0]) if len(component_classes) == 1 else None
        return found or super().get_visual_style(*component_classes, partial=partial)

    def get_block_class(self, block_name: str) -> type[blocks.MarkdownBlock]:
        """Blocks that carry marks, where there are some."""
        return _BLOCKS.get(block_name) or super().get_block_class(block_name)

    def take_number(self, token: Token) -> int | None:
        """The number of the next item of the outermost list, if the piece sets it."""
        if self._number is None or token.level != 1:
            return None
        self._number += 1
        return self._number - 1

    def mark_inline(self, block: blocks.MarkdownBlock, token: Token, content: Content) -> Content:
        """Lay marks over the content of an inline token; none if it cannot be mapped in full."""
        cell = self._next_cell(token) if isinstance(block, _TH | _TD) else None
        offsets = mapping.map_inline(self._piece.source, self._starts, token, cell=cell)
        return self._mark(content, offsets)

    def mark_code(self, token: Token, content: Content) -> Content:
        """The same for a code block."""
        assert token.map is not None
        first = token.map[0] + (1 if token.type == "fence" else 0)
        code = token.content.rstrip()
        offsets = mapping.map_code(self._piece.source, self._starts, first, code)
        if offsets is not None and "\t" in code:
            offsets = _expand(code, offsets)
        return self._mark(content, offsets)

    def _mark(self, content: Content, offsets: list[int] | None) -> Content:
        if offsets is None or len(offsets) != len(content.plain):
            return content
        head = len(self._piece.head)
        offsets = [offset - head if offset >= head else -1 for offset in offsets]
        return marked(content, project(self._runs, offsets, self._piece.start))

    def _next_cell(self, token: Token) -> int:
        row = token.map[0] if token.map else -1
        self._cells[row] = self._cells.get(row, -1) + 1
        return self._cells[row]


def _expand(code: str, offsets: list[int]) -> list[int]:
    """Offsets after tabs became spaces, every space of a tab coming from that tab."""
    expanded: list[int] = []
    column = 0
    for char, offset in zip(code, offsets, strict=True):
        width = 4 - column % 4 if char == "\t" else 1
        expanded.extend([offset] * width)
        column = 0 if char == "\n" else column + width
    return expanded
