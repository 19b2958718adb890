"""The file as `outrider config init` writes it: every setting with a comment and its default, commented out."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from outrider.app.config.fields import FIELDS, SECTIONS, Field
from outrider.app.config.toml import key, written

_WIDTH = 100
_HEAD = """\
# Settings of Outrider. A line that begins with # is a comment; where no blank follows it, it is a setting with its default:
# take the # away and change the value. `outrider config check` looks for mistakes, `outrider config show` tells what holds
# and why. A running chat takes changes over by itself.
"""
_BUNDLES = """\
# ---------------------------------------------------------------------------------------------------
# Personas: named sets of the keys of engine, drafting, sampling and chat. `outrider --persona brief`, or /persona in
# the chat.
#
# [personas.brief]
# system = "Answer in one sentence."
# temperature = 0.3
# max_tokens = 120

# Presets: the same keys, but model, for every model whose name a pattern matches (* stands for anything). Later ones win.
#
# [presets."*coder*"]
# drafter = "suffix"
# temperature = 0.2

# Models: the same keys for one model by its name, over the presets.
#
# [models.starter]
# system = "Answer in short sentences."
# think = false
"""


def template(keys: Mapping[str, Sequence[str]]) -> str:
    """The whole text. `keys`: the keys of every action."""
    parts = [_HEAD]
    for name, section in SECTIONS.items():
        parts.append(f"[{name}]  # {section.__doc__}")
        parts += [_setting(one) for one in FIELDS.values() if one.section == name and one.path != "keys.bind"]
        if name == "keys":
            parts += ["[keys.bind]  # keys of your own; [] takes all of an action away", *_bound(keys)]
    return "\n".join((*parts, _BUNDLES))


def _setting(one: Field) -> str:
    lines = textwrap.wrap(one.help, _WIDTH - 2)
    if one.unset:
        lines += textwrap.wrap(f'"default" is {one.unset}.', _WIDTH - 2)
    choices = one.words
    if '"' in choices.replace('"default"', "") and len(choices) > 10:
        lines += textwrap.wrap(f"One of: {choices}.", _WIDTH - 2)
    return "\n".join((*(f"# {line}" for line in lines), f"#{one.name} = {written(one.default)}", ""))


def _bound(keys: Mapping[str, Sequence[str]]) -> list[str]:
    return [*(f"#{key(action)} = {written(list(names))}" for action, names in keys.items()), ""]
