"""What the tests of the store begin with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outrider.app.store.chats import Store
from outrider.app.store.records import Answer, Chat, Node, Settings, Whole
from outrider.core.base.protocol import Kind, Report, Step, Timing, Token


def step(seq: int, tokens: Sequence[tuple[str, Kind]], *, thinking: bool = False) -> Step:
    """A pass that brought these tokens."""
    made = [Token(7 + n, text, kind, thinking=thinking) for n, (text, kind) in enumerate(tokens)]
    accepted = sum(kind == "A" for _, kind in tokens)
    drafter = "suffix" if accepted else "none"
    return Step(
        request=1,
        seq=seq,
        t=seq / 10,
        drafter=drafter,
        proposed=accepted,
        accepted=accepted,
        tokens=made,
        draft_ms=0.1,
        verify_ms=1.0,
        host_ms=0.2,
    )


def report(text: str, kinds: str, thinking: str = "") -> Report:
    """The report of a reply."""
    return Report(
        model="starter",
        drafter="auto",
        rule="match",
        seed=5,
        text=text,
        token_ids=list(range(len(kinds))),
        prompt_tokens=3,
        finish="stop",
        passes=2,
        proposed=4,
        accepted=3,
        kinds=kinds,
        timing=Timing(decode_s=1.0, first_token_s=0.5),
        tokens_per_second=12.5,
        drafters={"suffix": 2},
        speedup=None,
        thinking=thinking,
    )


def chat(name: str, title: str = "Rivers", **options: object) -> Chat:
    """A chat without messages."""
    return Chat(id=name, title=title, created=1000.0, updated=1000.0, **options)  # type: ignore[arg-type]


def says(name: str, text: str, parent: str | None = None, role: str = "user", **options: object) -> Node:
    """A message."""
    return Node(id=name, role=role, text=text, parent=parent, created=1000.0, **options)  # type: ignore[arg-type]


def filled(path: Path) -> Store:
    """A store with one chat: a question, and two answers to it, the second with marks and shown."""
    store = Store.open(path)
    with store.changing():
        store.put_chat(chat("C1", system="Be kind.", settings=Settings(think=True)))
        store.put_node("C1", says("q", "Which river is long?"))
        store.put_node("C1", says("a1", "The Amazon.", "q", "assistant", state="stopped"))
        kept = Answer(marks="P4A4P1", ids=[1, 2, 70000], kinds="P1A2", report=report("", ""), settings=Settings())
        store.put_node("C1", says("a2", "The Nile.", "q", "assistant", answer=kept))
        store.set_head("C1", "a2")
    store.index()
    return store


def path_of(store: Store, name: str = "C1") -> list[str]:
    """Texts of the branch that is shown."""
    return [node.text for node in store.load(name).path()]


def whole_of(*texts: str, title: str = "Rivers") -> Whole:
    """A chat of these messages in turn, the user's first."""
    nodes = []
    for number, text in enumerate(texts):
        role = "assistant" if number % 2 else "user"
        nodes.append(says(f"n{number}", text, nodes[-1].id if nodes else None, role))
    return Whole(chat=chat("0" * 26, title, head=nodes[-1].id), nodes=nodes)
