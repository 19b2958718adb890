"""The page of the documentation with every key, made from the registry."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.app.chat.actions import ACTIONS, PROMPT_KEYS
from outrider.app.chat.keymap import PRESETS, build, own_keys, shown

_HEAD = """\
# Keys and commands of the chat

Made by `outrider keys --markdown`; do not change it by hand. The leader is `ctrl+o`: it and a letter do the same as a key
where the terminal does not send that. Letters under *on a message* work while a message has the focus (`alt+up`, or
`ctrl+o k`), each alone: letters that follow each other quickly go to the prompt. Keys of your own stand in the settings
under `[keys.bind]`, by the name in the last column.
"""


def page() -> str:
    """The whole page as Markdown."""
    parts = [_HEAD, "## In the prompt\n", _table(("keys", "what they do"), _prompt())]
    for group in dict.fromkeys(action.group for action in ACTIONS):
        rows = [
            (
                ", ".join(_code([shown(name) for name in (*one.keys, *one.empty_prompt)])),
                ", ".join(_code([one.leader] if one.leader else [])),
                ", ".join(_code(one.letters)),
                "".join(_code([f"/{one.slash} {one.argument}".rstrip()])) if one.slash else "",
                one.help,
                f"`{one.id}`",
            )
            for one in ACTIONS
            if one.group == group
        ]
        head = ("keys", "leader", "on a message", "command", "what it does", "name")
        parts += [f"## {group}\n", _table(head, rows)]
    parts += ["## Presets\n", "`keys.preset` in the settings chooses one. What differs from the default:\n"]
    parts += [text for preset in PRESETS if preset != "default" for text in _preset(preset)]
    return "\n".join(parts)


def _prompt() -> Iterable[tuple[str, ...]]:
    return ((", ".join(_code(keys.split(", "))), words) for keys, words in PROMPT_KEYS)


def _preset(preset: str) -> Iterable[str]:
    yield f"### {preset}\n"
    rows = [
        (f"`{one.id}`", ", ".join(_code(map(shown, own_keys(one)))) or "none")
        for one, base in zip(build(preset, {}).actions, ACTIONS, strict=True)
        if own_keys(one) != own_keys(base)
    ]
    yield _table(("name", "keys and letters"), rows)


def _code(names: Iterable[str]) -> list[str]:
    return [f"`` {name} ``" if "`" in name else f"`{name}`" for name in names]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
