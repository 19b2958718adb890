"""Chats from files: Outrider's own JSON, whole, and what other tools write, see `foreign`."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from outrider.app.store import codec, foreign
from outrider.app.store.exports import FORMAT, VERSION
from outrider.app.store.ids import new_id
from outrider.app.store.problems import StoreError
from outrider.app.store.records import OPEN, Answer, Node, Whole

READS = (
    "It reads chats that Outrider exported as JSON, lists of {role, content} messages, and exports of ShareGPT, Open WebUI "
    "and ChatGPT, as JSON or JSON Lines."
)
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # of a character that JSON writes in two halves
_ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
_IDS = 1 << 32
_LATEST = 32503680000  # seconds: the year 3000


def read_chats(data: bytes) -> tuple[list[Whole], int]:
    """The chats in a file and how many of its messages were left out, being neither the user's nor the model's.

    Raises `StoreError` saying where in the file something is wrong.
    """
    value = _decode(data)
    if isinstance(value, dict) and value.get("format") == FORMAT:
        return [_checked(whole, number) for number, whole in enumerate(_own(value), 1)], 0
    items = value if isinstance(value, list) else [value]
    if items and all(isinstance(item, dict) and "role" in item for item in items):
        items = [items]  # the messages of one chat
    if not items:
        raise StoreError("There is no chat in it.", READS)
    wholes, skipped = [], 0
    for number, item in enumerate(items, 1):
        where = f"chat {number}" if len(items) > 1 else "the chat"
        try:
            whole, left = foreign.read(item)
        except foreign.Wrong as wrong:
            raise StoreError(f"{wrong} in {where}.", READS) from None
        skipped += left
        if whole is not None:
            _check_tree(whole, number)
            wholes.append(whole)
    return wholes, skipped


def _decode(data: bytes) -> Any:
    data = data.removeprefix(b"\xef\xbb\xbf").strip()
    try:
        return _json(data)
    except msgspec.DecodeError as error:
        lines = data.splitlines()
        if len(lines) < 2 or not lines[0].rstrip().endswith((b"}", b"]")):
            raise StoreError(f"It is no JSON: {error}.", READS) from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found += [_json(line)] if line.strip() else []
        except msgspec.DecodeError as error:
            raise StoreError(f"Line {number} is no JSON: {error}.", READS) from error
    return found


def _json(data: bytes) -> Any:
    """A JSON value; of a character that was cut in half U+FFFD is left. Raises DecodeError, `StoreError` for one too deep."""
    try:
        try:
            return msgspec.json.decode(data)
        except msgspec.DecodeError:
            if not _HALF.search(data):
                raise
        try:
            text = json.dumps(json.loads(data), ensure_ascii=False)
        except ValueError as error:
            raise msgspec.DecodeError(str(error)) from error
        return msgspec.json.decode(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    except RecursionError:
        raise StoreError("It is nested deeper than any chat.", READS) from None


def _own(value: dict[str, Any]) -> list[Whole]:
    version = value.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise StoreError(
            f"It was exported by a newer Outrider (format {version}, this one knows {VERSION}).", "Update Outrider."
        )
    try:
        return msgspec.convert(value.get("chats"), list[Whole])
    except msgspec.ValidationError as error:
        raise StoreError(
            f"It is no whole export of Outrider: {error}.", "Export it again, or mend that place."
        ) from error


def _checked(whole: Whole, number: int) -> Whole:
    """The same chat with message names of its own. Raises `StoreError` if it does not hang together."""
    fresh: dict[str | None, str | None] = {None: None}
    for node in whole.nodes:
        if node.id in fresh:
            raise _broken(number, f"two messages are named {node.id[:40]!r}")
        fresh[node.id] = new_id()
    _check_tree(whole, number)
    if whole.chat.head not in fresh:
        raise _broken(number, f"its head {whole.chat.head!r:.40} is none of its messages")
    for node in whole.nodes:
        _check_answer(node, number)
        node.id, node.parent = str(fresh[node.id]), fresh[node.parent]
        node.created = _moment(node.created)
        if node.state in OPEN:
            node.state = "interrupted"
    whole.chat.head = fresh[whole.chat.head]
    whole.chat.created, whole.chat.updated = _moment(whole.chat.created), _moment(whole.chat.updated)
    if not _ID.fullmatch(whole.chat.id):
        whole.chat.id = new_id()
    return whole


def _moment(seconds: float) -> float:
    return seconds if 0 <= seconds < _LATEST else 0.0


def _check_tree(whole: Whole, number: int) -> None:
    parents = {node.id: node.parent for node in whole.nodes}
    safe: set[str | None] = {None}
    for node in whole.nodes:
        way: set[str | None] = set()
        place: str | None = node.id
        while place not in safe:
            if place in way:
                raise _broken(number, f"message {node.id[:40]!r} stands above itself")
            if place not in parents:
                raise _broken(number, f"a message hangs on {place!r:.40}, which is not there")
            way.add(place)
            place = parents[place]
        safe |= way


def _check_answer(node: Node, number: int) -> None:
    answer = node.answer or Answer()
    try:
        codec.runs_of(answer.marks, len(node.text))
        codec.runs_of(answer.thought_marks, len(node.thinking))
        kinds = codec.count(answer.kinds)
    except ValueError as error:
        raise _broken(number, str(error)) from error
    if any(not 0 <= token < _IDS for token in answer.ids):
        raise _broken(number, "a token id is out of range")
    if kinds != len(answer.ids):
        raise _broken(number, f"a reply of {len(answer.ids)} tokens has kinds for {kinds}")


def _broken(number: int, what: str) -> StoreError:
    return StoreError(f"Chat {number} of it is damaged: {what}.", "Export it again, or mend that place.")
