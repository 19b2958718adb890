"""What the chat reads differently from GitHub's Markdown, so that nothing a model wrote vanishes.

Maths stays as it is written, footnotes and definitions of links are text, a row keeps cells for which its table has no
column, and what is nested too deeply is a paragraph.
"""

from __future__ import annotations

from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, table
from markdown_it.rules_block.table import escapedSplit
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

_MATHS = {"\\(": "\\)", "\\[": "\\]", "$$": "$$", "\\)": "", "\\]": ""}
_DEEPEST = 18  # levels; the parser leaves out what lies below its limit of 20


def add_rules(parser: MarkdownIt) -> None:
    """Teach them to a parser."""
    parser.disable("reference")
    parser.inline.ruler.before("escape", "maths", _maths)
    parser.block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})
    parser.block.ruler.before("table", "deep", _deep)
    parser.core.ruler.after("inline", "nothing_empty", _nothing_empty)


def _maths(state: StateInline, silent: bool) -> bool:
    """Tokens `maths`, as they are written with what encloses them; breaks of lines stay breaks."""
    start = state.pos
    opening = state.src[start : start + 2]
    closing = _MATHS.get(opening)
    if closing is None:
        return False
    end = state.src.find(closing, start + 2, state.posMax) if closing else -1
    if end < 0 and opening == "$$":
        return False
    end = start + 2 if end < 0 else end + len(closing)
    if not silent:
        for number, line in enumerate(state.src[start:end].split("\n")):
            if number:
                state.push("softbreak", "br", 0)
            if line := line.strip(" \t"):
                state.push("maths", "", 0).content = line
    state.pos = end
    return True


def _table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """The last column takes what a row has beyond it."""
    first = len(state.tokens)
    found = table(state, start, end, silent)
    if silent or not found:
        return found
    made = state.tokens[first:]
    columns = sum(token.type == "th_open" for token in made)
    cells = [token for token in made if token.type == "inline"]
    for last in cells[columns - 1 :: columns]:
        assert last.map is not None
        line = state.src[state.bMarks[last.map[0]] + state.tShift[last.map[0]] : state.eMarks[last.map[0]]].strip()
        fields = escapedSplit(line)
        lead = fields[0] == ""
        if len(fields) - lead - (fields[-1] == "") > columns:
            last.content = _from_field(line, columns - 1 + lead).strip().replace("\\|", "|")
    return True


def _from_field(line: str, number: int) -> str:
    """A row from a cell on, without the pipe at its end."""
    at = 0
    for _ in range(number):
        at = _pipe(line, at) + 1
    return line[at:-1] if line.endswith("|") and not line.endswith("\\|") else line[at:]


def _pipe(line: str, at: int) -> int:
    at = line.index("|", at)
    while at and line[at - 1] == "\\":
        at = line.index("|", at + 1)
    return at


def _deep(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """All that is left, as one paragraph."""
    if silent or state.level < _DEEPEST:
        return False
    state.push("paragraph_open", "p", 1).map = [start, end]
    inline = state.push("inline", "", 0)
    inline.content, inline.map, inline.children = (
        state.getLines(start, end, state.blkIndent, False).strip(),
        [start, end],
        [],
    )
    state.push("paragraph_close", "p", -1)
    state.line = end
    return True


def _nothing_empty(state: StateCore) -> None:
    """A link without a text, or a picture without one, shows where it leads."""
    for token in state.tokens:
        for one, following in pairwise([*(token.children or ()), Token("", "", 0)]):
            if one.type == "link_open" and following.type == "link_close":
                one.meta["shown"] = str(one.attrs.get("href", ""))
            elif one.type == "image" and not one.children:
                one.meta["shown"] = str(one.attrs.get("src", ""))
