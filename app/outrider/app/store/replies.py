"""A reply of the chat as what is kept of it, and back."""

from __future__ import annotations

import msgspec

from outrider.app.chat.talk import Chat, End, Reply, Strand, Turn
from outrider.app.store.codec import expand, runs_of, squeeze
from outrider.app.store.records import Answer, Figures, Node, Pass, Settings, State, Whole
from outrider.core.protocol import Report, Step

_STATES: dict[End, State] = {
    End.NOT_YET: "partial",
    End.WHOLE: "complete",
    End.LENGTH: "length",
    End.STOPPED: "stopped",
    End.INTERRUPTED: "interrupted",
}
_ENDS = {state: end for end, state in _STATES.items()} | {"partial": End.INTERRUPTED}


class Growing:
    """A reply while it comes, with the tokens and passes that are kept of it. It belongs to the thread that saves."""

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.reply = Reply()
        self._settings = settings
        self._ids: list[int] = []
        self._kinds: list[str] = []
        self._passes: list[Pass] = []

    def take(self, step: Step) -> None:
        """Add a pass."""
        self.reply.take(step)
        self._ids += [token.id for token in step.tokens]
        self._kinds += [token.kind for token in step.tokens]
        thought = sum(len(token.text) for token in step.tokens if token.thinking)
        answer = sum(len(token.text) for token in step.tokens) - thought
        times = (round(step.draft_ms, 3), round(step.verify_ms, 3), round(step.host_ms, 3))
        told = (step.drafter, step.proposed, step.accepted, len(step.tokens), thought, answer)
        self._passes.append(Pass(round(step.t, 4), *told, *times))

    def row(self) -> Node:
        """As it is now."""
        reply, node = self.reply, self.node
        node.text, node.thinking, node.state = reply.text, reply.thought.text, _STATES[reply.end]
        ids, kinds, report = self._ids, "".join(self._kinds), reply.report
        if report is not None:
            ids, kinds = report.token_ids, report.kinds
            report = msgspec.structs.replace(report, text="", thinking="", token_ids=[], kinds="")
        thought = reply.thought
        figures = Figures(
            tokens=thought.tokens,
            seconds=round(thought.seconds, 4),
            proposed=thought.proposed,
            accepted=thought.accepted,
            drafters=reply.drafters,
        )
        node.answer = Answer(
            marks=reply.answer.runs.encode(),
            thought_marks=thought.runs.encode(),
            ids=ids,
            kinds=squeeze(kinds),
            passes=self._passes,
            figures=figures,
            settings=self._settings,
            report=report,
        )
        return node


def reply_of(node: Node) -> Reply:
    """The reply that a row keeps. Raises ValueError if its run lengths are none."""
    reply = Reply()
    kept = node.answer or Answer()
    _fill(reply.answer, node.text, kept.marks)
    _fill(reply.thought, node.thinking, kept.thought_marks)
    figures = kept.figures
    reply.thought.tokens, reply.thought.seconds = figures.tokens, figures.seconds
    reply.thought.proposed, reply.thought.accepted = figures.proposed, figures.accepted
    reply.drafters = list(figures.drafters)
    reply.end = _ENDS.get(node.state, End.INTERRUPTED)
    reply.report = report_of(node)
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
    for run in runs_of(marks, len(text)):
        strand.add(text[run.start : run.end], run.kind)


def chat_of(whole: Whole) -> Chat:
    """The branch that is shown, as the chat screen knows it."""
    chat = Chat(whole.chat.system, id=whole.chat.id)
    for node in whole.path():
        if node.role == "user":
            chat.turns.append(Turn(node.text, node=node.id))
            continue
        if not chat.turns or chat.turns[-1].reply is not None:  # only in chats that came from elsewhere
            chat.turns.append(Turn("", node=node.parent or ""))
        reply = reply_of(node)
        reply.node = node.id
        chat.turns[-1].reply = reply
    return chat
