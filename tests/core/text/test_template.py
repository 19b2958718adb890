"""Chat templates: every published one against the texts that were rendered from it, and what a bad one does."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path

import pytest

from outrider.core.base.errors import ModelError, OutriderError, UsageError
from outrider.core.base.protocol import Message
from outrider.core.text import template as template_module
from outrider.core.text.sandbox import Sandbox
from outrider.core.text.template import ChatTemplate

NOW = datetime(2026, 1, 15, 12)
QUICK = Sandbox(0.2)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_every_published_template(templates: Path) -> None:
    """All texts are equal; where the reference failed, we fail too or render without the undefined tools."""
    expected = json.loads((templates / "expected.json").read_text("utf-8"))
    equal = retried = 0
    wrong = []
    for name, entry in expected["templates"].items():
        with (templates / name).open(encoding="utf-8", newline="") as file:
            template = ChatTemplate(file.read(), entry["special_tokens"])
        for case, want in entry["expected"].items():
            options = {"add_generation_prompt": False, **expected["cases"][case]}
            try:
                found = template.render(options.pop("messages"), now=NOW, **options)
            except OutriderError as error:
                assert error.message.endswith(".") and "\n" not in error.message
                found = None
            if "text" in want:
                equal += found == want["text"]
                wrong += [(name, case)] if found != want["text"] else []
            elif found is not None:
                retried += 1
                if not ("NoneType" in want["error"] or case == "continue" or "System role" in want["error"]):
                    wrong.append((name, case))
    assert wrong == []
    assert equal > 1000 and retried == 56


def test_messages_as_structs_and_as_dicts() -> None:
    template = ChatTemplate(CHATML)
    text = template.render([Message("user", "Hi <b> & 'x'")])
    assert text == "<|im_start|>user\nHi <b> & 'x'<|im_end|>\n<|im_start|>assistant\n"
    assert text == template.render([{"role": "user", "content": "Hi <b> & 'x'", "name": None}])
    assert template.render([Message("user", "Hi")], add_generation_prompt=False).endswith("<|im_end|>\n")


def test_going_on_with_the_last_message() -> None:
    messages = [Message("user", "Hi"), Message("assistant", "Well, ")]
    plain = ChatTemplate(CHATML).render(messages, continue_final_message=True)
    assert plain.endswith("<|im_start|>assistant\nWell, ")
    stripped = ChatTemplate(CHATML.replace("m['content']", "m['content'] | trim"))
    assert stripped.render(messages, continue_final_message=True).endswith("assistant\nWell,")
    with pytest.raises(UsageError, match="no text to go on with"):
        ChatTemplate(CHATML).render([], continue_final_message=True)
    with pytest.raises(ModelError, match="does not show the last message"):
        ChatTemplate("nothing").render(messages, continue_final_message=True)


def test_special_tokens_and_switches_are_variables() -> None:
    template = ChatTemplate("{{ bos_token }}{{ enable_thinking }}{{ strftime_now('%Y') }}", {"bos_token": "<s>"})
    assert template.render([], enable_thinking=False, now=NOW) == "<s>False2026"
    assert template.render([], bos_token="<x>", enable_thinking=1, now=NOW) == "<x>12026"


def test_the_json_filter_keeps_signs_and_order() -> None:
    template = ChatTemplate("{{ value | tojson }}|{{ value | tojson(indent=1, sort_keys=true) }}")
    assert template.render([], value={"b": "<é>", "a": 1}) == '{"b": "<é>", "a": 1}|{\n "a": 1,\n "b": "<é>"\n}'


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ x", "{% nonsense %}", "{% for a in b %}", "{{ 'a' | no_such_filter }}"]
)
def test_a_template_that_does_not_compile(source: str) -> None:
    with pytest.raises(ModelError, match=r"cannot be compiled: .*") as caught:
        ChatTemplate(source)
    assert "--raw" in caught.value.hint and caught.value.message.count("\n") == 0


def test_a_template_that_refuses() -> None:
    with pytest.raises(UsageError, match="refuses the conversation: roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render([])


def test_a_template_without_a_system_role() -> None:
    """The system text goes in front of the first question; other refusals stay what they are."""
    no_system = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Roles must alternate') }}{% endif %}{{ m.role }}: {{ m.content }}|{% endfor %}"
    )
    template = ChatTemplate(no_system)
    system, question, answer = Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Yo")
    assert template.render([system, question, answer]) == "user: Be brief.\n\nHi|assistant: Yo|"
    assert template.render([question]) == "user: Hi|"
    assert template.render([system, question], continue_final_message=True) == "user: Be brief.\n\nHi"
    with pytest.raises(UsageError, match="refuses the conversation: System role not supported"):
        template.render([system, question, question])
    with pytest.raises(UsageError, match="System role not supported"):
        template.render([system])
    with pytest.raises(UsageError, match="Roles must alternate"):
        template.render([question, question])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",  # immutable
        "{{ messages.pop() }}",
        "{{ range(10000000) | list | length }}",
        "{{ 1 / 0 }}",
        "{{ undefined_name.attribute }}",
        "{{ messages[0].content + 5 }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{% for a in 5 %}{% endfor %}",
        "{% set x = namespace(a=1) %}{% set x.a = messages.missing.deeper %}",
        "{% include 'other' %}",
        "{% for i in range(10**12) %}x{% endfor %}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    ],
)
def test_a_template_that_fails(source: str) -> None:
    with pytest.raises(ModelError, match=r"^The chat template of this model fails: .+\.$"):
        ChatTemplate(source).render([Message("user", "x")])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ '' | attr('__class__') }}",
        "{{ [''] | map(attribute='__class__') | list }}",
        "{{ messages['__class__'] }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ (1).__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ (range(3) | map('string')).gi_frame }}",
        "{{ undefined_name.__class__ }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ '{a.__class__}'.format_map({'a': 1}) }}",
        "{{ ('a' | escape).__class__ }}",
    ],
)
def test_a_template_that_reaches_out(source: str) -> None:
    with pytest.raises(ModelError, match=r"fails: it reaches for '(__|gi_)"):
        ChatTemplate(source).render([Message("user", "x")])


GROW = (
    "{% set n = namespace(s=['a'], t='a', i=3) %}{% for i in range(99) %}{% set BODY %}{% endfor %}{{ n.s }}{{ n.t }}"
)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(80) }}",
        "{{ range(99999) | map('center', 99999) | join }}",
        "{% for i in range(99999) %}{{ 'a' * 5000 }}{% endfor %}",
        GROW.replace("BODY", "n.t = n.t ~ n.t"),
        GROW.replace("BODY", "n.s = n.s + n.s"),
        GROW.replace("BODY", "n.s = [n.s, n.s]"),
        GROW.replace("BODY", "n.i = n.i * n.i"),
    ],
)
def test_a_template_without_end(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever takes too much time or memory is one error, and the next template is rendered as ever."""
    monkeypatch.setattr(template_module, "SANDBOX", QUICK)
    with pytest.raises(ModelError, match=r"(does not end within 0.2|more than 1024 MB|writes 499995000)"):
        ChatTemplate(source).render([Message("user", "x")])
    assert ChatTemplate(CHATML).render([]) == "<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ [0] * 10**9 }}", "takes more than 1024 MB of memory"),
        ("{{ 'a' | center(10**10) }}", "takes more than 1024 MB of memory"),
        ("{{ '{:>10000000000}'.format(1) }}", "takes more than 1024 MB of memory"),
        ("{{ 'a' * 70000000 }}", "writes 70000000 signs"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a process within its memory")
def test_a_template_that_takes_too_much_memory(source: str, why: str) -> None:
    with pytest.raises(ModelError, match=f"fails: it {why}"):
        ChatTemplate(source).render([])


@pytest.mark.parametrize("source", ["{{ 7 ** (9**9) }}", "{{ " + "[" * 9000 + "]" * 9000 + " }}"])
def test_a_template_that_takes_too_much_already_while_compiling(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_module, "SANDBOX", QUICK)
    with pytest.raises(ModelError, match=r"(does not end within 0.2|cannot be compiled: maximum recursion)"):
        ChatTemplate(source)


def test_the_process_of_templates_comes_and_goes() -> None:
    """Gone between two requests, ended by one, closed: each time there is a new one."""
    sandbox = Sandbox()
    request = {"source": "{{ x }}", "values": {"x": "é\ud800"}, "now": NOW.isoformat()}
    for end in (lambda process: process.kill(), lambda process: sandbox.close()):
        assert sandbox.ask(request) == {"text": "é\ud800"}
        process = sandbox._process
        assert process is not None
        end(process)
        process.wait()
    assert sandbox.ask(request) == {"text": "é\ud800"}
    sandbox.close()
    sandbox.close()


def test_a_process_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ModelError, match="No process for chat templates can be started: No such file"):
        Sandbox().ask({"source": ""})


def test_a_process_that_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(ModelError, match="it ended its process with 1"):
        Sandbox().ask({"source": ""})


@pytest.mark.real
def test_the_starter_has_its_own_template(starter, templates: Path) -> None:
    template = starter.template
    assert template is not None
    file = templates / "HuggingFaceTB-SmolLM2-135M-Instruct.jinja"
    assert template.source == file.read_bytes().decode()
