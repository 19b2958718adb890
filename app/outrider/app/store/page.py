"""A chat as one HTML page that needs nothing else: marks as tints, no script, light and dark."""

from __future__ import annotations

from html import escape

from outrider.app.chat.clean import harmless
from outrider.app.chat.input.attach import label as file_label
from outrider.app.chat.marks import Runs
from outrider.app.store.exports import Said, moment, one_line, said
from outrider.app.store.records import Whole

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --page: #fff; --text: #1c1c1c; --dim: #5f6368; --side: #c9ced6;
  --early: rgba(0, 114, 178, .16); --corrected: #a34700; }}
@media (prefers-color-scheme: dark) {{ :root {{ --page: #16181d; --text: #e6e6e6; --dim: #9aa0a6; --side: #3c4450;
  --early: rgba(86, 180, 233, .22); --corrected: #f0a94b; }} }}
body {{ background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif; max-width: 50rem;
  margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.4rem; }} h2 {{ font-size: 1rem; margin: 1.5rem 0 .25rem; }}
.about, .footer, .legend, summary {{ color: var(--dim); font-size: .85rem; }}
.text {{ white-space: pre-wrap; overflow-wrap: anywhere; border-left: 3px solid var(--side); padding-left: .75rem; }}
.thought {{ color: var(--dim); }}
.a {{ background: var(--early); border-radius: 2px; }}
.c {{ color: var(--corrected); font-weight: bold; }}
</style>
</head>
<body>
"""
_CLASSES = {"A": "a", "C": "c"}


def to_html(whole: Whole) -> str:
    """The branch that is shown, as it was written: Markdown is left as text, so that every mark is exact."""
    chat, messages = whole.chat, said(whole)
    title = escape(one_line(chat.title))
    model = escape(one_line(chat.settings.model.model))
    parts = [_HEAD.format(title=title), f"<h1>{title}</h1>\n"]
    parts.append(f'<p class="about">{model} · {moment(chat.created)}</p>\n')
    if any(len(message.runs) for message in messages):
        parts.append(
            '<p class="legend"><span class="a">Tinted</span> words came early: a drafter guessed them and the model agreed. '
            '<span class="c">Bold</span> ones corrected a guess.</p>\n'
        )
    if chat.system:
        parts.append(f'<h2>System</h2>\n<div class="text">{escape(harmless(chat.system))}</div>\n')
    parts += [_message(message) for message in messages]
    return "".join([*parts, "</body>\n</html>\n"])


def _message(message: Said) -> str:
    parts = [f"<h2>{escape(message.who)}</h2>\n"]
    if message.thought and message.thought_runs is not None:
        label = f"Thought ({escape(message.thought_figures)})" if message.thought_figures else "Thought"
        inner = _marked(message.thought, message.thought_runs)
        parts.append(f'<details><summary>{label}</summary><div class="text thought">{inner}</div></details>\n')
    for one in message.attachments:
        inner = escape(one.text)
        parts.append(
            f'<details><summary>{escape(file_label(one))}</summary><div class="text">{inner}</div></details>\n'
        )
    parts.append(f'<div class="text">{_marked(message.text, message.runs)}</div>\n')
    if message.footer:
        parts.append(f'<p class="footer">{escape(message.footer)}</p>\n')
    return "".join(parts)


def _marked(text: str, runs: Runs) -> str:
    parts = []
    for run in runs:
        words = escape(text[run.start : run.end])
        name = _CLASSES.get(run.kind)
        parts.append(f'<span class="{name}">{words}</span>' if name else words)
    return "".join(parts) + escape(text[len(runs) :])
