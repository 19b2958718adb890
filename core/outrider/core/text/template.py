"""Chat templates: Jinja in its immutable sandbox, with what published templates expect to find."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, Protocol

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outrider.core.errors import ModelError, UsageError


class Turn(Protocol):
    """One message of a chat."""

    role: str
    content: str


class ChatTemplate:
    """One compiled template. `tokens`: strings of special tokens by name. Raises ModelError if the source is not valid."""

    def __init__(self, source: str, tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self.tokens = dict(tokens or {})
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ModelError(
                f"The chat template of this model cannot be compiled: {_first_line(error)}.",
                "Use `outrider run --raw`, which needs no template.",
            ) from error

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

        With `continue_final_message` the text ends where the last message ends, so that the model goes on with it.
        Raises UsageError where the template refuses the messages, ModelError where it fails.
        """
        turns = [_message(message) for message in messages]
        if continue_final_message:
            _mark_end(turns)
        text = self._render(
            {
                **self.tokens,
                "messages": turns,
                "add_generation_prompt": add_generation_prompt and not continue_final_message,
                "strftime_now": (now or datetime.now()).strftime,
                **kwargs,
            }
        )
        return _cut_at_mark(text) if continue_final_message else text

    def _render(self, values: dict[str, Any]) -> str:
        try:
            return self._template.render({"tools": None, "documents": None, **values})
        except TypeError as error:
            # Some templates only ask whether tools are defined, and then walk through None.
            if values.get("tools") is not None or values.get("documents") is not None:
                _fail(error)
        except _RENDER_ERRORS as error:
            _fail(error)
        values = {key: value for key, value in values.items() if key not in ("tools", "documents")}
        try:
            return self._template.render(values)
        except (TypeError, *_RENDER_ERRORS) as error:
            _fail(error)


_MARK = "\ue000outrider:end\ue001 "  # private-use signs: in no template and in no one's text


class _RefusedError(jinja2.TemplateError):
    """The template itself called `raise_exception`."""


# A template is a program of a stranger: whatever ordinary mistake it makes is the model's, not ours.
_RENDER_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    ValueError,
    MemoryError,
)


def _fail(error: BaseException) -> NoReturn:
    if isinstance(error, _RefusedError):
        raise UsageError(
            f"The chat template of this model refuses the conversation: {_first_line(error)}.",
            "Change the messages, or use `outrider run --raw`, which needs no template.",
        ) from error
    raise ModelError(
        f"The chat template of this model fails: {_first_line(error)}.",
        "Use `outrider run --raw`, which needs no template.",
    ) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200].rstrip(".")


def _message(message: Turn | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(message, Mapping):
        return {key: value for key, value in message.items() if value is not None}
    return {"role": message.role, "content": message.content}


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


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what a model wrote, for training; here its body passes through."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    return environment


def _refuse(message: str) -> NoReturn:
    raise _RefusedError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own escapes HTML and sorts keys; models were trained without either.
    dump: Callable[..., str] = json.dumps
    return dump(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
