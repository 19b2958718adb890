"""Chat templates: messages in, one text out. The template itself runs in a process of its own, see `jinja`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from outrider.core.base.errors import ModelError, UsageError
from outrider.core.text.foreign import Foreign, Rendered
from outrider.core.text.sandbox import RAW, SANDBOX


class Turn(Protocol):
    """One message of a chat."""

    role: str
    content: str
    thinking: str


class ChatTemplate:
    """One template. `tokens`: strings of special tokens by name; `controls`: strings that count as control tokens only where
    the template itself writes them, not in a message. Raises ModelError if the source is not valid."""

    def __init__(
        self, source: str, tokens: Mapping[str, str] | None = None, controls: Collection[str] = frozenset()
    ) -> None:
        self.source = source
        self.tokens = dict(tokens or {})
        self._foreign = Foreign(controls)
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
    ) -> Rendered:
        """The chat as one text that holds its special tokens, bos included; `kwargs` are the template's own switches.

        With `continue_final_message` the text ends where the last message ends, so that the model continues with it. Where the
        template refuses the messages they are tried once more with the system text in front of the first question.
        Raises UsageError where the template refuses the messages, ModelError where it fails or does not end.
        """
        turns = [_message(message) for message in messages]
        values = {
            **self.tokens,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
            **kwargs,
        }
        clock = (now or datetime.now()).isoformat()

        def written(some: list[dict[str, Any]]) -> str:
            return self._whole(some, values, clock, to_last=continue_final_message)

        return self._foreign.rendered(turns, self.source, written)

    def behind(self, opening: str, text: str) -> Rendered:
        """`opening`, which the template could have written, then `text` of a message."""
        return self._foreign.joined(opening, text)

    def folds(self, messages: Sequence[Turn | Mapping[str, Any]]) -> bool:
        """Whether it knows no system role, so that the system text is put in front of the first question."""
        turns = [_message(message) for message in messages]
        merged = _merged(turns)
        if merged is None:
            return False
        values = {**self.tokens, "add_generation_prompt": True}
        try:
            self._text({"messages": turns, **values}, datetime.now().isoformat())
        except UsageError:
            return True
        return False

    def _whole(self, turns: list[dict[str, Any]], values: dict[str, Any], clock: str, *, to_last: bool) -> str:
        """The text of a chat, if need be with its system text moved; `to_last`: up to the end of the last message."""
        mark = _end_mark(turns) if to_last else ""
        turns = _marked(turns, mark) if to_last else turns
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
        return _cut_at_mark(text, mark) if to_last else text

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


def _message(message: Turn | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(message, Mapping):
        return {key: value for key, value in message.items() if value is not None}
    # Templates know a thought by one of three names.
    thought = (
        dict.fromkeys(("reasoning_content", "reasoning", "thinking"), message.thinking) if message.thinking else {}
    )
    return {"role": message.role, "content": message.content, **thought}


def _end_mark(turns: list[dict[str, Any]]) -> str:
    """A text of private-use characters that is in no message."""
    mark = "\ue000outrider:end\ue001"
    while any(mark in str(turn.get("content")) for turn in turns):
        mark = f"\ue000{mark}\ue001"
    return mark


def _marked(turns: list[dict[str, Any]], mark: str) -> list[dict[str, Any]]:
    """The same with a mark and a blank after the last message."""
    content = turns[-1].get("content") if turns else None
    if not isinstance(content, str):
        raise UsageError("There is no text to go on with in the last message.", "Ask something instead.")
    return [*turns[:-1], {**turns[-1], "content": f"{content}{mark} "}]


def _cut_at_mark(text: str, mark: str) -> str:
    head, found, tail = text.rpartition(mark)
    if not found:
        raise ModelError("The chat template of this model does not show the last message.", "Ask something instead.")
    # The template strips its messages if the blank behind the mark is gone; then the kept text is stripped too.
    return head if tail.startswith(" ") else head.rstrip()


def _merged(turns: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The system text in front of the first question, for templates that know no system role; None without such a pair."""
    match turns:
        case [{"role": "system", "content": str(system)}, {"role": "user", "content": str(question)} as first, *rest]:
            return [{**first, "content": f"{system}\n\n{question}"}, *rest]
    return None
