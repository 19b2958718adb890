"""Chat templates: every published one against the texts that were rendered from it, and what a bad one does."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from outrider.core.errors import ModelError, OutriderError, UsageError
from outrider.core.protocol import Message
from outrider.core.text.template import ChatTemplate

NOW = datetime(2026, 1, 15, 12)
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
                if not ("NoneType" in want["error"] or case == "continue"):
                    wrong.append((name, case))
    assert wrong == []
    assert equal > 1000 and retried == 48


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


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",  # immutable
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ (1).__class__.__base__.__subclasses__() }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ range(10000000) | list | length }}",
        "{{ 1 / 0 }}",
        "{{ undefined_name.attribute }}",
        "{{ messages[0].content + 5 }}",
        "{{ [1, 2][none] }}",
        "{{ 'x' | int(base=99) }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{% for a in 5 %}{% endfor %}",
        "{% set x = namespace(a=1) %}{% set x.a = messages.missing.deeper %}",
        "{% include 'other' %}",
    ],
)
def test_a_template_that_fails_or_reaches_out(source: str) -> None:
    template = ChatTemplate(source)
    try:
        text = template.render([Message("user", "x")])
    except ModelError as error:
        assert error.message.startswith("The chat template of this model fails: ")
    else:
        assert "class" not in text and "object" not in text and "globals" not in text


@pytest.mark.real
def test_the_starter_has_its_own_template(starter, templates: Path) -> None:
    template = starter.template
    assert template is not None
    file = templates / "HuggingFaceTB-SmolLM2-135M-Instruct.jinja"
    assert template.source == file.read_bytes().decode()
