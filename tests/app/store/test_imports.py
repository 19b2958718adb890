"""Chats from elsewhere: every shape that is read, and what is said of those that are not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from store_support import whole_of

from outrider.app.store.exports import to_json
from outrider.app.store.imports import read_chats
from outrider.app.store.problems import StoreError
from outrider.app.store.records import Answer, Whole

TALK = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
]
SHARE = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}
WEBUI = {
    "title": "Rivers",
    "created_at": 1700000000,
    "chat": {
        "models": ["llama"],
        "history": {
            "currentId": "c",
            "messages": {
                "a": {"id": "a", "parentId": None, "role": "user", "content": "Hi", "timestamp": 1700000001},
                "b": {"id": "b", "parentId": "a", "role": "assistant", "content": "Hello", "model": "qwen"},
                "c": {"id": "c", "parentId": "a", "role": "assistant", "content": "Hey"},
            },
        },
    },
}


def entry(role: str, parent: str, *parts: object, **more: object) -> dict[str, Any]:
    """A message as ChatGPT exports it."""
    content = {"content_type": "text", "parts": parts}
    return {"message": {"author": {"role": role}, "content": content, **more}, "parent": parent}


CHATGPT = {
    "title": "Rivers",
    "create_time": 1700000000.5,
    "current_node": "d",
    "mapping": {
        "root": {"id": "root", "message": None, "parent": None, "children": ["s"]},
        "s": entry("system", "root", ""),
        "a": entry("user", "s", "Hi", "there"),
        "t": entry("tool", "a", "42"),
        "d": entry("assistant", "t", {"image": 1}, "Hello", metadata={"model_slug": "gpt"}),
    },
}


def read(value: Any) -> tuple[list[Whole], int]:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return read_chats(data)


def shown(whole: Whole) -> list[tuple[str, str]]:
    return [(node.role, node.text) for node in whole.path()]


SAID = [("user", "Hi"), ("assistant", "Hello")]


@pytest.mark.parametrize(
    "value",
    [
        TALK,
        [TALK],
        [TALK, TALK],
        {"messages": TALK},
        [{"messages": TALK, "title": "T"}],
        SHARE,
        [SHARE, SHARE],
        {"conversations": TALK},
        json.dumps(SHARE).encode() + b"\n\n" + json.dumps({"messages": TALK}).encode() + b"\n",
        b"\xef\xbb\xbf" + json.dumps(TALK).encode(),
        {"chat": {"title": "T", "messages": TALK}},
    ],
)
def test_lists_of_messages(value: Any) -> None:
    wholes, left = read(value)
    assert wholes and left == 0 and all(shown(whole) == SAID for whole in wholes)


def test_system_prompt_titles_and_thoughts() -> None:
    talk = [
        *TALK[:2],
        {"role": "assistant", "content": [{"type": "text", "text": "Hello"}], "reasoning_content": "Hm."},
    ]
    ((whole,), _) = read({"messages": talk, "title": "Greeting"})
    assert whole.chat.system == "Be kind." and whole.chat.title == "Greeting"
    assert whole.nodes[1].thinking == "Hm." and read(TALK)[0][0].chat.title == "Hi"


def test_open_webui_keeps_its_branches() -> None:
    ((whole,), left) = read([WEBUI])
    assert shown(whole) == [("user", "Hi"), ("assistant", "Hey")] and len(whole.nodes) == 3 and left == 0
    assert [node.model for node in whole.nodes] == ["llama", "qwen", "llama"]
    assert (whole.chat.title, whole.chat.created, whole.chat.updated) == ("Rivers", 1700000000, 1700000001)


def test_chatgpt_leaves_out_tools_and_keeps_what_hangs_on_them() -> None:
    ((whole,), left) = read([CHATGPT])
    assert shown(whole) == [("user", "Hi\nthere"), ("assistant", "Hello")] and left == 1
    assert whole.nodes[1].model == "gpt" and whole.chat.title == "Rivers"


def test_chats_without_a_word_are_left_out() -> None:
    assert read([{"messages": []}, {"messages": TALK}, {"messages": [{"role": "tool", "content": "x"}]}])[1] == 1


def circle() -> dict[str, Any]:
    tree = json.loads(json.dumps(WEBUI))
    tree["chat"]["history"]["messages"]["a"]["parentId"] = "c"
    return tree


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "It is no JSON"),
        (b"hello", "It is no JSON"),
        (b'{"messages": [}', "It is no JSON"),
        (b'{"messages": []}\n{"mess', "Line 2 is no JSON"),
        ([], "There is no chat in it"),
        ({"a": 1}, "There are no messages in the chat"),
        (7, "There is a number where messages belong in the chat"),
        ([SHARE, "x"], "There is a text where messages belong in chat 2"),
        ([TALK, [{"role": "user", "content": "x"}, {"content": "y"}]], "Message 2 has no `role` in chat 2"),
        ({"messages": [{"role": "user"}]}, "Message 1 has no `content`"),
        ({"messages": [{"role": "user", "content": 3}]}, "The text of message 1 is a number"),
        ({"conversations": [{"value": "x"}]}, "Message 1 has no `from`"),
        (circle(), "stands above itself"),
        ({"mapping": {"x": 3}}, "is a number, no message"),
    ],
)
def test_errors_teach(value: Any, words: str) -> None:
    with pytest.raises(StoreError) as told:
        read(value)
    assert (words in told.value.message and "ShareGPT" in told.value.hint) or "mend" in told.value.hint


def own(**changes: Any) -> dict[str, Any]:
    """An export of ours, with one thing changed: `PLACE=value`, the place in dots."""
    whole = whole_of("Hi", "Hello")
    whole.nodes[1].answer = Answer(ids=[1], kinds="P1", marks="P5")
    value = json.loads(to_json([whole]))
    for place, new in changes.items():
        at: Any = value
        *way, last = [int(key) if key.isdigit() else key for key in place.split("__")]
        for key in way:
            at = at[key]
        at[last] = new
    return value


@pytest.mark.parametrize(
    ("place", "new", "words"),
    [
        ("version", 9, "newer Outrider (format 9"),
        ("chats", 3, "Expected `array`"),
        ("chats__0__nodes__1__text", 3, "$[0].nodes[1].text"),
        ("chats__0__nodes__1__role", "tool", "$[0].nodes[1].role"),
        ("chats__0__nodes__1__id", "n0", "two messages are named 'n0'"),
        ("chats__0__nodes__1__parent", "gone", "hangs on 'gone'"),
        ("chats__0__nodes__0__parent", "n1", "stands above itself"),
        ("chats__0__chat__head", "gone", "its head 'gone' is none"),
        ("chats__0__nodes__1__answer__marks", "Q1", "no list of run lengths"),
        ("chats__0__nodes__1__answer__kinds", "A999999999", "1 tokens has kinds for 999999999"),
        ("chats__0__nodes__1__answer__ids", [-1], "out of range"),
    ],
)
def test_damage_in_our_own_exports_is_found(place: str, new: Any, words: str) -> None:
    with pytest.raises(StoreError) as told:
        read(own(**{place: new}))
    assert words in told.value.message and told.value.hint


def test_odd_things_in_our_own_exports_are_put_right() -> None:
    value = own(
        chats__0__chat__id="../../evil",
        chats__0__chat__created=1e300,
        chats__0__nodes__1__state="partial",
        chats__0__nodes__1__created=-5,
    )
    ((whole,), _) = read(value)
    assert len(whole.chat.id) == 26 and whole.chat.created == 0.0 == whole.nodes[1].created
    assert whole.nodes[1].state == "interrupted" and shown(whole) == SAID


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b'{"a":' * 100_000, b"[]\n" + b"[" * 100_000, b"[" * 9999 + b"]" * 9999]
)
def test_what_is_nested_too_deeply(data: bytes) -> None:
    with pytest.raises(StoreError, match="nested deeper than any chat"):
        read_chats(data)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("a \\ud83d\\ude42 b", "a 🙂 b"),
        ("a \\ud83d b", "a \ufffd b"),
        ("\\ude42", "\ufffd"),
        ("\\ud83d\\ud83d\\ude42", "\ufffd🙂"),
        ("\\\\ud83d", "\\ud83d"),
    ],
)
@pytest.mark.parametrize("line", [False, True])
def test_halves_of_characters(written: str, text: str, line: bool) -> None:
    """Tools that cut texts by UTF-16 units leave halves behind; the rest of the chat is read all the same."""
    chat = b'[{"role": "user", "content": "' + written.encode() + b'"}, {"role": "assistant", "content": "b"}]'
    wholes, _ = read_chats(chat + b"\n" + chat if line else chat)
    assert [whole.nodes[0].text for whole in wholes] == [text] * (2 if line else 1)


def test_a_half_in_what_is_no_json() -> None:
    with pytest.raises(StoreError, match="It is no JSON"):
        read_chats(b'[{"role": "user", "content": "\\ud83d"')
