"""The process that renders chat templates: one request a line, one answer a line, both JSON.

    python -m outrider.core.text.jinja SECONDS

A template is a program of a stranger. It gets Jinja's immutable sandbox, so many seconds of processor time for each request
and `MEMORY` bytes; the kernel ends this process when a template takes more time, and nothing else is lost.

    {"source": str, "values": {...} | null, "now": "2026-01-15T12:00:00"}     without values the template is only compiled
    {"text": str} | {"uncompiled": why} | {"refused": why} | {"failed": why}  `{}` after a mere compilation
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, modifies_known_mutable

MEMORY = 1 << 30  # bytes of address space
LONGEST = 1 << 26  # signs of a text, more than any context holds


class _RefusedError(jinja2.TemplateError):
    """The template itself called `raise_exception`."""


# Whatever ordinary mistake a template makes is the model's, not ours.
_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


def main(seconds: float) -> None:
    """Answer until the other side is gone; `seconds` is the processor time that a request may take."""
    if sys.platform == "linux":  # elsewhere the kernel does not keep this limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin.buffer:
        _alarm(seconds)
        answer = json.dumps(_answer(json.loads(line))).encode()
        _alarm(0)
        sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.buffer.flush()


def _alarm(seconds: float) -> None:
    """Let the kernel end this process after so much processor time; 0: never."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _answer(request: dict[str, Any]) -> dict[str, str]:
    try:
        template = _compiled(request["source"])
    except _ERRORS as error:
        return {"uncompiled": _said(error)}
    values = request.get("values")
    if values is None:
        return {}
    values["strftime_now"] = datetime.fromisoformat(request["now"]).strftime
    try:
        text = _text(template, values)
    except _RefusedError as error:
        return {"refused": _said(error)}
    except _ERRORS as error:
        return {"failed": _said(error)}
    return {"text": text} if len(text) <= LONGEST else {"failed": f"it writes {len(text)} signs"}


def _text(template: jinja2.Template, values: dict[str, Any]) -> str:
    try:
        return template.render({"tools": None, "documents": None, **values})
    except TypeError:
        # Some templates only ask whether tools are defined, and then walk through None.
        if values.get("tools") is not None or values.get("documents") is not None:
            raise
    return template.render({key: value for key, value in values.items() if key not in ("tools", "documents")})


def _said(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return f"it takes more than {MEMORY >> 20} MB of memory"
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200].rstrip(".")


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what a model wrote, for training; here its body passes through."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox of Jinja, in which a name that is out of reach is an error and not an empty text."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        if modifies_known_mutable(obj, attribute):  # may be the key of a dict, asked for as an attribute
            return super().unsafe_undefined(obj, attribute)
        raise SecurityError(f"it reaches for {attribute!r} of a {type(obj).__name__}")


@lru_cache(maxsize=8)
def _compiled(source: str) -> jinja2.Template:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(source)


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


if __name__ == "__main__":
    main(float(sys.argv[1]))
