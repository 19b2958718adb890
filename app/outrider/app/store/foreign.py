"""Chats as other tools write them: {role, content} messages, ShareGPT, Open WebUI, ChatGPT."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from outrider.app.store.ids import new_id
from outrider.app.store.records import Chat, Node, Settings, Whole, title_of
from outrider.core.base.protocol import ModelChoice

_ROLES = {
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "system": "system",
    "developer": "system",
}


class Wrong(Exception):
    """Something is not as it should be; says what, in words that ` in chat 3.` can follow."""


@dataclass(slots=True)
class _Message:
    key: str
    parent: str | None
    role: str
    text: str
    thinking: str = ""
    created: float = 0.0
    model: str = ""


@dataclass(slots=True)
class _Foreign:
    messages: list[_Message]
    head: str | None
    title: str = ""
    created: float = 0.0
    names: list[str] = field(default_factory=list)  # of models


def read(item: Any) -> tuple[Whole | None, int]:
    """One chat and how many of its messages were left out; None if none are left. Raises `Wrong`."""
    if isinstance(item, list):
        return _built(_Foreign(*_listed(item, "role", "content")))
    if not isinstance(item, dict):
        raise Wrong(f"There is {_name(item)} where messages belong")
    inner = item.get("chat")
    if isinstance(item.get("mapping"), dict):
        return _built(_chatgpt(item))
    if isinstance(inner, dict) and ("history" in inner or "messages" in inner):
        return _built(_webui(item, inner))
    for key, role, content in (("conversations", "from", "value"), ("messages", "role", "content")):
        if isinstance(item.get(key), list):
            if key == "conversations" and item[key] and isinstance(item[key][0], dict) and "role" in item[key][0]:
                role, content = "role", "content"
            messages, head = _listed(item[key], role, content)
            return _built(_Foreign(messages, head, _text(item.get("title")), _time(item.get("created"))))
    raise Wrong("There are no messages")


def _listed(items: list[Any], role: str, content: str) -> tuple[list[_Message], str | None]:
    """One message after the other."""
    messages: list[_Message] = []
    last: str | None = None
    for number, item in enumerate(items, 1):
        if not isinstance(item, dict) or not isinstance(item.get(role), str):
            raise Wrong(f"Message {number} has no `{role}`")
        if content not in item and "tool_calls" not in item:
            raise Wrong(f"Message {number} has no `{content}`")
        text = _content(item.get(content), number)
        thinking = _text(item.get("reasoning_content") or item.get("thinking"))
        messages.append(_Message(str(number), last, item[role], text, thinking, _time(item.get("timestamp"))))
        last = str(number)
    return messages, last


def _webui(item: dict[str, Any], chat: dict[str, Any]) -> _Foreign:
    title = _text(chat.get("title")) or _text(item.get("title"))
    created = _time(item.get("created_at") or chat.get("timestamp"))
    models = [name for name in chat.get("models") or [] if isinstance(name, str)]
    history = chat.get("history")
    tree = history.get("messages") if isinstance(history, dict) else None
    if not isinstance(tree, dict) or not tree:
        messages, head = _listed(chat.get("messages") or [], "role", "content")
        return _Foreign(messages, head, title, created, models)
    messages = []
    for number, (key, told) in enumerate(tree.items(), 1):
        if not isinstance(told, dict) or not isinstance(told.get("role"), str):
            raise Wrong(f"Message {number} has no `role`")
        text = _content(told.get("content"), number)
        parent, moment = told.get("parentId"), _time(told.get("timestamp"))
        messages.append(_Message(key, parent, told["role"], text, "", moment, _text(told.get("model"))))
    return _Foreign(
        messages, _text(history.get("currentId")) if isinstance(history, dict) else None, title, created, models
    )


def _chatgpt(item: dict[str, Any]) -> _Foreign:
    messages = []
    for key, entry in item["mapping"].items():
        if not isinstance(entry, dict):
            raise Wrong(f"Entry {key[:40]!r} is {_name(entry)}, no message")
        told = entry.get("message") or {}
        content = told.get("content") or {}
        shown = content.get("content_type") in ("text", "multimodal_text", "code", None)
        parts = content.get("parts") or [content.get("text") or ""]
        text = "\n".join(part for part in parts if isinstance(part, str)) if shown else ""
        role = _text((told.get("author") or {}).get("role")) or "nobody"
        model = _text((told.get("metadata") or {}).get("model_slug"))
        messages.append(_Message(key, entry.get("parent"), role, text, "", _time(told.get("create_time")), model))
    return _Foreign(messages, item.get("current_node"), _text(item.get("title")), _time(item.get("create_time")))


def _built(foreign: _Foreign) -> tuple[Whole | None, int]:
    """A tree of its own names; what hangs on a message that is left out hangs on what stands above that."""
    kept = {message.key: message for message in foreign.messages}
    if len(kept) != len(foreign.messages):
        raise Wrong("Two messages have the same name")
    system = next((m.text for m in foreign.messages if _ROLES.get(m.role.lower()) == "system" and m.text), None)
    says = {key for key, message in kept.items() if _speaks(message)}
    names = {key: new_id() for key in kept if key in says}
    nodes = []
    for key, message in kept.items():
        if key not in says:
            continue
        above = next((place for place in _above(message.parent, kept) if place in says), None)
        role = _ROLES[message.role.lower()]
        nodes.append(
            Node(
                id=names[key],
                role="user" if role == "user" else "assistant",
                text=message.text,
                parent=names[above] if above else None,
                thinking=message.thinking,
                created=message.created or foreign.created,
                model=message.model or next(iter(foreign.names), ""),
            )
        )
    skipped = sum(bool(message.text) and _ROLES.get(message.role.lower()) is None for message in kept.values())
    if not nodes:
        return None, skipped
    head = next((place for place in _above(foreign.head, kept) if place in says), None)
    return Whole(chat=_chat(foreign, nodes, names[head] if head else nodes[-1].id, system), nodes=nodes), skipped


def _chat(foreign: _Foreign, nodes: list[Node], head: str, system: str | None) -> Chat:
    created = foreign.created or nodes[0].created or time.time()
    updated = max([created, *(node.created for node in nodes)])
    title = title_of(foreign.title or next((node.text for node in nodes if node.role == "user"), nodes[0].text))
    settings = Settings(model=ModelChoice())
    return Chat(id=new_id(), title=title, created=created, updated=updated, head=head, system=system, settings=settings)


def _speaks(message: _Message) -> bool:
    return _ROLES.get(message.role.lower()) in ("user", "assistant") and bool(message.text or message.thinking)


def _above(key: Any, kept: dict[str, _Message]) -> Iterator[str]:
    """`key` and everything above it. Raises `Wrong` if that goes in a circle."""
    seen = set()
    while isinstance(key, str) and key in kept:
        if key in seen:
            raise Wrong(f"Message {key[:40]!r} stands above itself")
        seen.add(key)
        yield key
        key = kept[key].parent


def _content(value: Any, number: int) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(value, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in value]
        return "\n".join(part for part in parts if isinstance(part, str))
    if value is not None and not isinstance(value, str):
        raise Wrong(f"The text of message {number} is {_name(value)}")
    return value or ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _time(value: Any) -> float:
    """Seconds since 1970, also from milliseconds; 0 where there is none that can be."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 3.2e13:
        return 0.0
    return value / 1000 if value > 3.2e10 else float(value)


def _name(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number")
