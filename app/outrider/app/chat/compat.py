"""What reaches behind Textual's public face, beside `bindings`: Markdown blocks that carry marks.

Every block keeps what it shows without marks and where each character came from, so that another mode of marks lays new
ones and parses nothing. Marks are named styles, resolved when painted: another theme needs a repaint and nothing else.
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
from outrider.app.chat.bare import Bare
from outrider.app.chat.blocks import Piece
from outrider.app.chat.hanging import Hanging
from outrider.app.chat.inline import content_of
from outrider.app.chat.leaf import Hits, Leaf
from outrider.app.chat.marked_text import Counts, Marked, named, summed
from outrider.app.chat.marked_text import MarkedText as MarkedText
from outrider.app.chat.marks import Layers
from outrider.app.chat.palette import Palette
from outrider.app.chat.places import Places
from outrider.app.chat.sheet import Row, Sheet, header
from outrider.app.chat.wrapped import Lines, line_at, wrapped

_SIGN = "$text-primary"


class _Inline(blocks.MarkdownBlock):
    """A block whose text is one inline token. Comes last among the bases: styles follow the first one."""

    leaf: Leaf | None = None

    def _token_to_content(self, token: Token) -> Content:
        bare, document = content_of(token), self._markdown
        if not isinstance(document, Settled):
            return bare
        self.leaf = document.leaf_of(self, token, bare)
        return document.dressed(self.leaf)

    def redress(self) -> None:
        """Lay the marks of now over it."""
        document = self._markdown
        if self.leaf is not None and isinstance(document, Settled):
            self._content = document.dressed(self.leaf)
            self.update(self._content, layout=False)

    def tell_lines(self) -> list[tuple[Widget, Counts]]:
        """Counts of its lines as they are wrapped."""
        document, width = self._markdown, self.size.width
        if self.leaf is None or not width or not isinstance(document, Settled):
            return []
        return [(self, self.leaf.shares(document.told, self._lines(width)))]

    def lines_of(self, offset: int) -> Iterator[int]:
        """The line of the screen where a character of the strand stands."""
        at = self.leaf.find(offset) if self.leaf is not None else None
        if at is not None and self.size.width:
            yield self.content_region.y + line_at(self._lines(self.size.width), at)

    def _lines(self, width: int) -> Lines:
        assert self.leaf is not None
        return wrapped(self.leaf.bare.plain, width)


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

    def _lines(self, width: int) -> Lines:
        return super()._lines(max(1, width - (self.sign.cell_length if self.sign is not None else 0)))


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


class _Table(blocks.MarkdownTable):
    """A table, shown by one widget."""

    _sheet: Sheet | None = None

    def compose(self) -> ComposeResult:
        """No widgets for the cells."""
        self._inner = list(_cells(self))
        self._aligned = [_alignment(cell) for cell in self._inner if isinstance(cell, _TH)]
        self._blocks.clear()
        if isinstance(self._markdown, Settled):
            self._markdown.take_table(self)
        yield from ()

    def render(self) -> Visual:
        """The cells with the marks of now."""
        if self._sheet is None:
            self._sheet = self._made()
        return self._sheet

    def redress(self) -> None:
        """Lay the marks of now over all cells."""
        self._sheet = None
        self.refresh()

    def tell_lines(self) -> list[tuple[Widget, Counts]]:
        """Counts of its lines."""
        document, width = self._markdown, self.size.width
        if not width or not isinstance(document, Settled):
            return []
        lines = [self._told(line or [], document.told) for line in self._shown().lines(width)]
        return [(self, lines)]

    def lines_of(self, offset: int) -> Iterator[int]:
        """The line of the screen where a character of the strand stands."""
        for cell, block in enumerate(self._inner):
            at = block.leaf.find(offset) if block.leaf is not None else None
            if at is None or not self.size.width:
                continue
            for y, line in enumerate(self._shown().lines(self.size.width)):
                if any(part and part.cell == cell and part.start <= at < part.end for part in line or ()):
                    yield self.content_region.y + y

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """What is selected, as it is shown."""
        return selection.extract(self._shown().text(self.size.width).plain), "\n"

    def _shown(self) -> Sheet:
        visual = self.render()
        assert isinstance(visual, Sheet)
        return visual

    def _told(self, line: Row, layers: Layers) -> tuple[int, int]:
        told = [
            leaf.shares(layers, [(part.start, part.end)])[0]
            for part in line
            if part is not None and (leaf := self._inner[part.cell].leaf) is not None
        ]
        return sum(early for early, _ in told), sum(all_ for _, all_ in told)

    def _made(self) -> Sheet:
        document, columns = self._markdown, len(self._aligned)
        contents = [
            document.dressed(cell.leaf) if cell.leaf is not None and isinstance(document, Settled) else cell._content
            for cell in self._inner
        ]
        contents[:columns] = [header(cell) for cell in contents[:columns]]
        rows = [contents[start : start + columns] for start in range(0, len(contents), columns)]
        return Sheet(rows, self._aligned)


def _alignment(cell: blocks.MarkdownBlock) -> str:
    return str(cell._token.attrs.get("style", "")).rpartition(":")[2] or "left"


def _cells(block: blocks.MarkdownBlock) -> Iterator[_TH | _TD]:
    for inner in block._blocks:
        if isinstance(inner, _TH | _TD):
            yield inner
        else:
            yield from _cells(inner)


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


class _BulletList(blocks.MarkdownBulletList, Bare):
    def compose(self) -> ComposeResult:
        for block in self._blocks:
            if isinstance(block, blocks.MarkdownListItem):
                yield from _item(block, f" {block.bullet}")
        self._blocks.clear()


class _OrderedList(blocks.MarkdownOrderedList, Bare):
    def compose(self) -> ComposeResult:
        items = [block for block in self._blocks if isinstance(block, blocks.MarkdownListItem)]
        first = int(items[0].bullet) if items else 1
        width = max(4, len(f"{first + len(items) - 1}. "))
        for number, block in enumerate(items, first):
            yield from _item(block, f"{number}. ".rjust(width))
        self._blocks.clear()


class _Fence(blocks.MarkdownFence):
    """A code block; a name that no lexer knows, or none at all, is shown as it is."""

    leaf: Leaf | None = None

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
        document = self._markdown
        if isinstance(document, Settled):
            self.leaf = self.leaf.recolored(content) if self.leaf else document.leaf_of_code(self, self._token, content)
            content = document.dressed(self.leaf)
        self._highlighted_code = content
        if self.is_mounted:
            super().set_content(content)

    def redress(self) -> None:
        """Lay the marks of now over the code."""
        document = self._markdown
        if self.leaf is not None and isinstance(document, Settled):
            self._highlighted_code = self._content = document.dressed(self.leaf)
            for label in self.query_children(Static):
                label.update(self._content, layout=False)

    def tell_lines(self) -> list[tuple[Widget, Counts]]:
        """Counts of the lines of the code."""
        document = self._markdown
        if self.leaf is None or not isinstance(document, Settled):
            return []
        shares = self.leaf.shares(document.told, wrapped(self.leaf.bare.plain, 0))
        return [(label, shares) for label in self.query_children(Static)]

    def lines_of(self, offset: int) -> Iterator[int]:
        """The line of the screen where a character of the strand stands."""
        at = self.leaf.find(offset) if self.leaf is not None else None
        if self.leaf is not None and at is not None:
            line = line_at(wrapped(self.leaf.bare.plain, 0), at)
            yield from (label.content_region.y + line for label in self.query_children(Static))

    def notify_style_update(self) -> None:
        """Colour again only when it would come out differently."""
        if self._color_key() != self._colored_for:
            self._colored_for = self._color_key()
            super().notify_style_update()
        else:
            super(blocks.MarkdownFence, self).notify_style_update()

    def _color_key(self) -> tuple[bool, bool]:
        return self.app.native_ansi_color, self.app.current_theme.dark


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
    "table_open": _Table,
    "bullet_list_open": _BulletList,
    "ordered_list_open": _OrderedList,
    "list_item_ordered_open": _Item,
    "fence": _Fence,
    "code_block": _Fence,
}


class Settled(Markdown, Bare):  # pyright: ignore[reportIncompatibleMethodOverride]  # Textual's own two differ
    """One settled piece of a reply as rendered Markdown, with its marks."""

    def __init__(self, piece: Piece, layers: Layers, palette: Palette, hits: Hits = ()) -> None:
        super().__init__(piece.source, parser_factory=mapping.parser, open_links=False)
        self.set_class(piece.goes_on, "-goes-on")
        self.told = layers
        self.hits = hits
        self._piece, self._palette = piece, palette
        self._places = Places(piece)
        self._number = piece.number
        self._marked: list[Marked] = []
        self._counts: tuple[object, Counts] | None = None

    @property
    def piece(self) -> Piece:
        """What it shows."""
        return self._piece

    def line_of(self, offset: int) -> int | None:
        """The line of the screen where a character of the strand stands; None if it is not known."""
        found = (line for block in self._marked for line in block.lines_of(offset))
        return next(found, None)

    def redress(self) -> None:
        """Lay the marks and hits of now over all of it."""
        for block in self._marked:
            block.redress()

    def counts(self) -> Counts:
        """Accepted and all letters of each line of it, as it is laid out now."""
        region, key = self.region, (self.size, len(self._marked))
        if self._counts is None or self._counts[0] != key:
            found = [told for block in self._marked for told in block.tell_lines()]
            self._counts = key, summed(found, region.y, region.height)
        return self._counts[1]

    def get_visual_style(self, *component_classes: str, partial: bool = False) -> Style:
        """Also knows the marks."""
        found = named(self._palette, component_classes)
        return found if found is not None else super().get_visual_style(*component_classes, partial=partial)

    def get_block_class(self, block_name: str) -> type[blocks.MarkdownBlock]:
        """Blocks that carry marks, where there are some."""
        return _BLOCKS.get(block_name) or super().get_block_class(block_name)

    def take_number(self, token: Token) -> int | None:
        """The number of the next item of the outermost list, if the piece sets it."""
        if self._number is None or token.level != 1:
            return None
        self._number += 1
        return self._number - 1

    def dressed(self, leaf: Leaf) -> Content:
        """The text of a leaf with the marks and hits of now."""
        return leaf.dressed(self.told, self._palette, self.hits)

    def leaf_of(self, block: _Inline, token: Token, content: Content) -> Leaf:
        """The text of an inline token and where it comes from; it comes from nowhere if it cannot be mapped in full."""
        cell = isinstance(block, _TH | _TD)
        if not cell:
            self._marked.append(block)
        return Leaf(content, self._places.inline(token, cell=cell))

    def leaf_of_code(self, block: _Fence, token: Token, content: Content) -> Leaf:
        """The same for a code block."""
        self._marked.append(block)
        return Leaf(content, self._places.code(token))

    def take_table(self, table: _Table) -> None:
        """Marks of its cells change with all others."""
        self._marked.append(table)
