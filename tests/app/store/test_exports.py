"""What leaves the store: whole, marked, and harmless to whoever opens it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from store_support import filled, says, whole_of

from outrider.app.store.chats import Store
from outrider.app.store.exports import to_json, to_markdown
from outrider.app.store.imports import read_chats
from outrider.app.store.page import to_html
from outrider.app.store.picture import to_svg
from outrider.app.store.records import Answer, Attachment, Whole
from outrider.app.store.replies import chat_of

EVIL = '</div><script>alert("1")</script> & <b>\x1b]0;title\x07\x1b[31m\x9b2J \u202egnp\u2066 \ufffe ]]> \r --> \x00 "q\' \ud800'
SVG = "{http://www.w3.org/2000/svg}"
WRITERS = [to_markdown, to_html, to_svg]


def evil() -> Whole:
    """A chat in which everything is hostile."""
    whole = whole_of(EVIL, EVIL, title=EVIL)
    whole.chat.system, whole.nodes[1].thinking, whole.nodes[1].model = EVIL, EVIL, EVIL
    whole.chat.settings.model = whole.chat.settings.model.__class__(model=EVIL)
    whole.nodes[0].attachments = [Attachment(name=EVIL, text=EVIL, path=EVIL)]
    whole.nodes[1].answer = Answer(marks=f"P5A{len(EVIL)}", thought_marks="A9")
    return whole


def marked() -> Whole:
    whole = whole_of("Which river?", "The Nile is *long*.\nYes <it> is.")
    whole.nodes[1].answer = Answer(marks="P4A4C3P13A8")
    return whole


def test_the_list_counts_the_messages_that_an_export_counts(path: Path) -> None:
    whole = whole_of("Which river?", "The Nile.", "And then?", "The Amazon.", "And?")
    whole.nodes.append(says("other", "Or which lake?", whole.nodes[1].id, "user"))  # on another branch
    with Store.open(path) as store:
        store.insert(whole)
        (row,) = store.chats()
        assert row.messages == 3 and "\nmessages: 3\n" in to_markdown(store.load(whole.chat.id))


def test_attachments_leave_with_their_message(path: Path) -> None:
    whole = whole_of("Sum up.", "Done.")
    whole.nodes[0].attachments = [
        Attachment(name="a.md", text="# A\n```\n", path="/a.md"),
        Attachment(name="pasted text", text="p"),
    ]
    text = to_markdown(whole)
    assert "<details><summary>a.md · 8 B</summary>\n\n````\n# A\n```\n````\n\n</details>" in text
    assert text.index("pasted 1 line · 1 B") < text.index("Sum up.")
    assert "<summary>a.md · 8 B</summary>" in to_html(whole) and "(a.md · 8 B)" in to_svg(whole)
    (back,), _ = read_chats(to_json([whole]).encode())
    assert back.nodes[0].attachments == whole.nodes[0].attachments
    with Store.open(path) as store:
        store.insert(whole)
        assert store.load(whole.chat.id).nodes[0].attachments == whole.nodes[0].attachments
        assert store.attached(whole.nodes[0].id) == whole.nodes[0].attachments and store.attached("nothing") == []
        assert chat_of(store.load(whole.chat.id)).messages()[0].content.startswith("File: a.md\n````\n# A\n")


@pytest.mark.parametrize("write", WRITERS)
def test_control_signs_never_pass(write: Callable[[Whole], str]) -> None:
    text = write(evil())
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)


def test_json_passes_no_control_sign_either() -> None:
    text = to_json([whole_of(EVIL.replace("\ud800", ""), "Hello")])
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text) and "\\u001b]0;" in text and "\\u009b" in text


def test_html_is_a_page_without_anything_active() -> None:
    class Page(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.tags: list[str] = []
            self.names: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.tags.append(tag)
            self.names += [name for name, _ in attrs]

    page = Page()
    page.feed(to_html(evil()))
    known = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "span", "details", "summary"}
    assert set(page.tags) <= known and page.tags.count("div") == 5
    assert not [name for name in page.names if name.startswith("on") or name in ("src", "href")]
    assert "default-src 'none'" in to_html(evil())


def test_html_marks_are_exact() -> None:
    page = to_html(marked())
    assert (
        '<div class="text">The <span class="a">Nile</span><span class="c"> is</span> *long*.\nYes '
        '<span class="a">&lt;it&gt; is.</span></div>' in page
    )
    assert "came early" in page and "came early" not in to_html(whole_of("Only a question"))


def test_svg_is_xml_with_marks_where_the_words_are() -> None:
    root = ElementTree.fromstring(to_svg(marked()))
    texts = {one.text: one for one in root.iter(f"{SVG}text")}
    boxes = [one for one in root.iter(f"{SVG}rect") if one.get("class") == "a"]
    assert [box.get("x") for box in boxes] == [texts["Nile"].get("x"), texts["<it> is."].get("x")]
    assert [box.get("width") for box in boxes] == ["33.6", "67.2"] and texts[" is"].get("class") == "c"
    ElementTree.fromstring(to_svg(evil()))


def test_svg_breaks_lines_between_words_and_wide_letters() -> None:
    root = ElementTree.fromstring(to_svg(whole_of("word " * 60 + "x" * 200 + "\n" + "长江" * 50)))
    lines = [one for one in root.iter(f"{SVG}text") if one.get("class") is None]
    assert "".join(one.text or "" for one in lines).replace(" ", "") == "word" * 60 + "x" * 200 + "长江" * 50
    assert max(float(one.get("textLength") or 0) for one in lines) <= 88 * 8.4 + 0.1
    assert len({one.get("y") for one in lines}) == len(lines) >= 8


def test_markdown_has_figures_on_top_and_words_unchanged(path: Path) -> None:
    with filled(path) as store:
        text = to_markdown(store.load("C1"))
    front, body = text.removeprefix("---\n").split("---\n", 1)
    figures = dict(line.split(": ", 1) for line in front.splitlines())
    assert json.loads(figures["title"]) == "Rivers" and figures["accepted"] == "3" and figures["tokens"] == "3"
    assert figures["created"] == '"1970-01-01T00:16:40Z"'
    assert "## System\n\nBe kind.\n" in body and "## You\n\nWhich river is long?\n" in body
    assert "## starter\n\nThe Nile.\n" in body and "75% accepted" in body and "Amazon" not in body
    code = "```py\nx = '<b>'  # \\*\n```"
    assert code in to_markdown(whole_of("q", code))


def test_json_holds_everything_and_comes_back(path: Path) -> None:
    with filled(path) as store:
        store.put_node("C1", says("odd", "tab\tand é \x1b \x9b", "a2"))
        before = store.load("C1")
        text = to_json([before])
    (after,), left = read_chats(text.encode())
    with Store.open(path.with_name("other.db")) as other:
        assert other.insert(after)
        again = other.load(after.chat.id)
    names = {old.id: new.id for old, new in zip(before.nodes, again.nodes, strict=True)}
    assert left == 0 and len(set(names.values()) | set(names)) == 8  # the names are its own
    for old, new in zip(before.nodes, again.nodes, strict=True):
        old.id, old.parent = names[old.id], names.get(old.parent or "")
        assert old == new
    before.chat.head, before.chat.id = names[before.chat.head or ""], after.chat.id
    assert before.chat == again.chat
