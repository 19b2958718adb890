"""The phase of an answer from its pieces: fences, bare JSON, thoughts."""

from __future__ import annotations

from itertools import groupby

import pytest

from outrider.core.session.text_kind import TextKind


def phases(text: str, size: int = 1) -> list[str]:
    """The phase behind every piece of so many characters."""
    follower, found = TextKind(), []
    for at in range(0, len(text), size):
        follower.feed(text[at : at + size], thinking=False)
        found.append(follower.now)
    return found


CASES = {
    "prose": ("Hello.\nIt `is` so.\n", ["prose"]),
    "code": ("See:\n```python\nx = 1\n```\nThat is it.", ["prose", "code", "prose"]),
    "tildes": ("~~~\n```\n~~~\nend", ["prose", "code", "prose"]),
    "longer fence": ("````md\n```\ninner\n```\n`````\nend", ["prose", "code", "prose"]),
    "too short a close": ("~~~~\n~~~\nx", ["prose", "code"]),
    "a close says nothing": ("```\n```python\nx\n```\nend", ["prose", "code", "prose"]),
    "indented": ("1. First:\n     ```c\n     int x;\n     ```\n2. Then", ["prose", "code", "prose"]),
    "in a list": ("- ```sh\n  ls\n  ```\nend", ["prose", "code", "prose"]),
    "quoted": ("> ```sh\n> ls\n> ```\nend", ["prose", "code", "prose"]),
    "carriage returns": ("```py\r\nx\r\n```\r\nend", ["prose", "code", "prose"]),
    "inline marks": ("``` is how it begins, `x` is inline\n```x``` too\n", ["prose"]),
    "marks within a line": ("so ```\nx\n", ["prose"]),
    "two marks": ("``\nx\n", ["prose"]),
    "fenced json": ('Here:\n```json\n{"a": 1}\n```\nDone.', ["prose", "json", "prose"]),
    "fenced JSON lines": ('```JSONL\n{"a": 1}\n```\nDone.', ["prose", "json", "prose"]),
    "bare json": ('{"a": [1, {"b": "}]"}], "c\\"}": 2}', ["json", "prose"]),
    "escapes": ('{"a\\"}": "\\\\"}\n{"b": 2}', ["json", "prose", "json", "prose"]),
    "bare list": ('\n [\n {"a": 1},\n 2]\nDone {"x": 1}', ["prose", "json", "prose"]),
    "json lines": ('{"a": 1}\n{"a": 2}\n', ["json", "prose", "json", "prose"]),
    "json, then code": ('{"a": 1}\n```c\nx\n```\n', ["json", "prose", "code", "prose"]),
    "a note": ("[Note] this is prose", ["json", "prose"]),  # one bracket alone may still become JSON
    "a brace": ("{% raw %} is Jinja", ["json", "prose"]),
    "json too late": ('It is {"a": 1}', ["prose"]),
}


@pytest.mark.parametrize("name", list(CASES))
def test_phases_follow_the_text(name: str) -> None:
    text, want = CASES[name]
    assert [phase for phase, _ in groupby(phases(text))] == want


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("name", list(CASES))
def test_it_does_not_matter_how_the_text_is_cut(name: str, size: int) -> None:
    text, _ = CASES[name]
    assert phases(text, size) == [*phases(text)[size - 1 :: size], phases(text)[-1]][: -(-len(text) // size)]


@pytest.mark.parametrize("size", [1, 2, 7])
def test_where_it_changes(size: int) -> None:
    """A fence counts from the end of its line on, its close too, however the text is cut."""
    text = "a\n```py\nx = 1\n```\nb"
    follower, at = TextKind(), 0
    for start in range(0, len(text), size):
        follower.feed(text[start : start + size], thinking=False)
        at = start + size
        inside = len("a\n```py\n") <= at < len("a\n```py\nx = 1\n```\n")
        assert follower.now == ("code" if inside else "prose"), text[:at]


def test_thoughts_are_thinking_and_say_nothing_of_the_answer() -> None:
    follower = TextKind()
    seen = []
    for text, thinking in [("Hm.\n```\n", True), ("{", True), ("", True), ('{"a"', False), (": 1}", False)]:
        follower.feed(text, thinking)
        seen.append(follower.now)
    assert seen == ["thinking", "thinking", "thinking", "json", "prose"]


@pytest.mark.parametrize(
    ("tail", "now", "after"),
    [
        ("", "prose", "prose"),
        ("Write:\n```python\ndef f(", "code", "prose"),
        ("```\nx\n```\nand then", "prose", "prose"),
        ("```json\n{", "json", "prose"),
        ("~~~\nx\n``", "code", "code"),
    ],
)
def test_a_raw_completion_goes_on_from_its_prompt(tail: str, now: str, after: str) -> None:
    follower = TextKind(tail)
    assert follower.now == now
    follower.feed("\n```\n" if now != "prose" else "text", thinking=False)
    assert follower.now == after


def test_a_fence_that_began_in_the_prompt_is_no_json() -> None:
    follower = TextKind("```c\nstruct a x = ")
    follower.feed('{"a"};\n', thinking=False)
    assert follower.now == "code"
