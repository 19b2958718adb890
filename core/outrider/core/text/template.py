"""Chat templates: messages in, one text out. The template itself runs in a process of its own, see `jinja`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from outrider.core.errors import ModelError, UsageError
from outrider.core.text.sandbox import RAW, SANDBOX


class Turn(Protocol):
    """One message of a chat."""

    role: str
    content: str
    thinking: str


class ChatTemplate:
    """One template. `tokens`: strings of special tokens by name. Raises ModelError if the source is not valid."""

    def __init__(self, source: str, tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self.tokens = dict(tokens or {})
        answer = SANDBOX.ask({"source": source})
        if "uncompiled" in answer:
            raise ModelError(f"The chat template of this model cannot be compiled: {answer['uncompiled']}.", RAW)

    def render(
        self,
        messages: Sequence[Turn | Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        now: datetime | None = None,
        **kwargs: Any,
    ) -> str:
        """The chat as one text that holds its special tokens, bos included; `kwargs` are the template's own switches.

        With `continue_final_message` the text ends where the last message ends, so that the model goes on with it. Where the
        template refuses the messages they are tried once more with the system text in front of the first question.
        Raises UsageError where the template refuses the messages, ModelError where it fails or does not end.
        """
        turns = [_message(message) for message in messages]
        if continue_final_message:
            _mark_end(turns)
        values = {
            **self.tokens,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
            **kwargs,
        }
        clock = (now or datetime.now()).isoformat()
        try:
            text = self._text({"messages": turns, **values}, clock)
        except UsageError as error:
            merged = _merged(turns)
            if merged is None:
                raise
            try:
                text = self._text({"messages": merged, **values}, clock)
            except UsageError:
                raise error from None
        return _cut_at_mark(text) if continue_final_message else text

    def _text(self, values: dict[str, Any], now: str) -> str:
        answer = SANDBOX.ask({"source": self.source, "values": values, "now": now})
        if "refused" in answer:
            raise UsageError(
                f"The chat template of this model refuses the conversation: {answer['refused']}.",
                "Change the messages, or use `outrider run --raw`, which needs no template.",
            )
        if "failed" in answer:
            raise ModelError(f"The chat template of this model fails: {answer['failed']}.", RAW)
        return answer["text"]


_MARK = "\ue000outrider:end\ue001 "  # private-use signs: in no template and in no one's text


def _message(message: Turn | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(message, Mapping):
        return {key: value for key, value in message.items() if value is not None}
    # Templates know a thought by one of three names.
    thought = (
        dict.fromkeys(("reasoning_content", "reasoning", "thinking"), message.thinking) if message.thinking else {}
    )
    return {"role": message.role, "content": message.content, **thought}


def _mark_end(turns: list[dict[str, Any]]) -> None:
    content = turns[-1].get("content") if turns else None
    if not isinstance(content, str):
        raise UsageError("There is no text to go on with in the last message.", "Ask something instead.")
    turns[-1] = {**turns[-1], "content": content + _MARK}


def _cut_at_mark(text: str) -> str:
    head, mark, tail = text.rpartition(_MARK.strip())
    if not mark:
        raise ModelError("The chat template of this model does not show the last message.", "Ask something instead.")
    # The template strips its messages if the blank behind the mark is gone; then the kept text is stripped too.
    return head if tail.startswith(" ") else head.rstrip()


def _merged(turns: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The system text in front of the first question, for templates that know no system role; None without such a pair."""
    match turns:
        case [{"role": "system", "content": str(system)}, {"role": "user", "content": str(question)} as first, *rest]:
            return [{**first, "content": f"{system}\n\n{question}"}, *rest]
    return None
