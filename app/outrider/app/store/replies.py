"""A reply of the chat as what is kept of it, and back."""

from __future__ import annotations

from functools import partial

import msgspec

from outrider.app.chat.talk import Chat, End, Reply, Strand
from outrider.app.chat.tree import Knot
from outrider.app.store import chances
from outrider.app.store.codec import expand, runs_of, squeeze
from outrider.app.store.records import Answer, Figures, Node, Settings, State, Whole
from outrider.core.base.protocol import Report, Step

_STATES: dict[End, State] = {
    End.NOT_YET: "partial",
    End.WHOLE: "complete",
    End.LENGTH: "length",
    End.STOPPED: "stopped",
    End.INTERRUPTED: "interrupted",
}
_ENDS = {state: end for end, state in _STATES.items()} | {"partial": End.INTERRUPTED}


class Growing:
    """A reply while it comes. It belongs to the thread that saves."""

    def __init__(self, node: Node, settings: Settings) -> None:
        """A node that has an answer goes on."""
        self.node = node
        self.reply = Reply()
        self._settings = settings
        if node.answer is not None:
            self.reply = reply_of(node)
            self.reply.go_on()

    def take(self, step: Step) -> None:
        """Add a pass."""
        self.reply.take(step)

    def row(self) -> Node:
        """As it is now."""
        return row_of(self.node, self.reply, self._settings)


def row_of(node: Node, reply: Reply, settings: Settings | None) -> Node:
    """Fill `node` with what is kept of a reply, which may grow meanwhile."""
    node.text, node.thinking, node.state = reply.text, reply.thought.text, _STATES[reply.end]
    report, thought = reply.report, reply.thought
    if report is not None:
        report = msgspec.structs.replace(report, text="", thinking="", token_ids=[], kinds="")
    figures = Figures(
        tokens=thought.tokens,
        seconds=round(thought.seconds, 4),
        proposed=thought.proposed,
        accepted=thought.accepted,
        drafters=list(reply.drafters),
        parts=list(reply.parts),
        lead=reply.lead,
    )
    node.answer = Answer(
        marks=reply.answer.runs.encode(),
        thought_marks=thought.runs.encode(),
        ids=list(reply.ids),
        kinds=squeeze(reply.kinds),
        passes=list(reply.passes),
        figures=figures,
        settings=settings,
        report=report,
        chances=chances.write(reply.answer.layers, thought.layers),
    )
    return node


def reply_of(node: Node) -> Reply:
    """The reply that a row keeps. Raises ValueError if its run lengths are none."""
    reply = Reply()
    kept = node.answer or Answer()
    _fill(reply.answer, node.text, kept.marks)
    _fill(reply.thought, node.thinking, kept.thought_marks)
    texts = reply.answer.layers, reply.thought.layers
    if kept.chances:
        chances.lay(*texts, kept.chances)
    else:
        chances.lay_passes(*texts, kept.passes)
    figures = kept.figures
    reply.thought.tokens, reply.thought.seconds = figures.tokens, figures.seconds
    reply.thought.proposed, reply.thought.accepted = figures.proposed, figures.accepted
    reply.drafters = list(figures.drafters)
    reply.ids, reply.kinds = list(kept.ids), expand(kept.kinds)
    reply.passes, reply.parts = list(kept.passes), list(figures.parts)
    reply.lead = figures.lead
    reply.end = _ENDS.get(node.state, End.INTERRUPTED)
    reply.report = report_of(node)
    reply.settings = kept.settings
    return reply


def report_of(node: Node) -> Report | None:
    """The report of a finished reply, whole again."""
    kept = node.answer
    if kept is None or kept.report is None:
        return None
    return msgspec.structs.replace(
        kept.report, text=node.text, thinking=node.thinking, token_ids=kept.ids, kinds=expand(kept.kinds)
    )


def _fill(strand: Strand, text: str, marks: str) -> None:
    strand.fill(text, runs_of(marks, len(text)))


def chat_of(whole: Whole) -> Chat:
    """A chat as the chat screen knows it, showing the branch that was shown. Replies elsewhere are made when they are needed."""
    chat = Chat(whole.chat.system, id=whole.chat.id, title=whole.chat.title)
    for node in whole.nodes:
        made = partial(reply_of, node) if node.role == "assistant" else None
        chat.tree.add(Knot(node.id, node.parent or "", node.text, tuple(node.attachments), made))
    chat.show(whole.chat.head or "")
    return chat
