"""Chats as text to keep or to show: JSON holds all of it, the others the branch that is shown, with marks where they can.

Control characters never pass; everything else of a text is as the model or the user wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from outrider.app import render
from outrider.app.chat.clean import harmless
from outrider.app.chat.input.attach import label as file_label
from outrider.app.chat.input.attach import with_attachments
from outrider.app.chat.marks import Runs
from outrider.app.chat.meter import summary
from outrider.app.chat.talk import End, figures
from outrider.app.store.records import Attachment, Node, Whole
from outrider.app.store.replies import reply_of

FORMAT, VERSION = "outrider chats", 1


@dataclass(frozen=True, slots=True)
class Said:
    """One message, safe to be shown. `runs` cover `text`, `thought_runs` the thought."""

    who: str
    text: str
    runs: Runs
    thought: str = ""
    thought_runs: Runs | None = None
    thought_figures: str = ""
    footer: str = ""
    attachments: tuple[Attachment, ...] = ()
    """Texts that went with it, as safe as the rest."""


def said(whole: Whole) -> list[Said]:
    """The branch that is shown."""
    return [_said(node) for node in whole.path()]


def _said(node: Node) -> Said:
    if node.role == "user":
        return Said("You", harmless(node.text), Runs(), attachments=tuple(map(_safe, node.attachments)))
    reply = reply_of(node)
    end = (
        "being written" if node.state == "partial" else reply.end.value
    )  # by a program that lives, else it is interrupted
    words = [] if reply.end is End.WHOLE else [end]
    words += summary(reply.report) if reply.report else []
    model = reply.report.model if reply.report else node.model
    return Said(
        who=one_line(model) or "Assistant",
        text=harmless(reply.text),
        runs=reply.answer.runs,
        thought=harmless(reply.thought.text),
        thought_runs=reply.thought.runs,
        thought_figures=figures(reply.thought) if reply.thought.tokens else "",
        footer=harmless(" · ".join(words)),
    )


def _safe(attachment: Attachment) -> Attachment:
    return Attachment(name=one_line(attachment.name), text=harmless(attachment.text), path=one_line(attachment.path))


def one_line(text: str) -> str:
    """Words from elsewhere, safe for a single line."""
    return harmless(" ".join(text.split()))


def moment(seconds: float) -> str:
    """A time as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def to_json(wholes: Sequence[Whole]) -> str:
    """Everything of these chats, for `outrider chats import`."""
    return render.json_text({"format": FORMAT, "version": VERSION, "chats": list(wholes)}).decode() + "\n"


def to_markdown(whole: Whole) -> str:
    """Front matter with figures, then the messages as they were written."""
    chat, messages = whole.chat, said(whole)
    front = {
        "title": one_line(chat.title),
        "id": chat.id,
        "created": moment(chat.created),
        "updated": moment(chat.updated),
        "model": one_line(chat.settings.model.model),
        **_totals(whole),
    }
    lines = ["---", *(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in front.items()), "---", ""]
    lines += [f"# {one_line(chat.title)}", ""]
    if chat.system:
        lines += ["## System", "", harmless(chat.system), ""]
    for message in messages:
        lines += [f"## {message.who}", ""]
        if message.thought:
            label = f"Thought ({message.thought_figures})" if message.thought_figures else "Thought"
            lines += [f"<details><summary>{label}</summary>", "", message.thought.strip("\n"), "", "</details>", ""]
        for one in message.attachments:
            body = with_attachments("", [one]).partition("\n")[2]
            lines += [f"<details><summary>{escape(file_label(one))}</summary>", "", body, "", "</details>", ""]
        lines += [message.text.strip("\n"), ""]
        if message.footer:
            lines += [f"*{message.footer}*", ""]
    return "\n".join(lines)


def _totals(whole: Whole) -> dict[str, int]:
    answers = [node.answer for node in whole.path() if node.answer is not None]
    reports = [answer.report for answer in answers if answer.report is not None]
    return {
        "messages": sum(node.role == "user" and node.state != "failed" for node in whole.path()),
        "tokens": sum(len(answer.ids) for answer in answers),
        "passes": sum(report.passes for report in reports),
        "proposed": sum(report.proposed for report in reports),
        "accepted": sum(report.accepted for report in reports),
    }
