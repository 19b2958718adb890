"""What a model may write that a terminal or a renderer could choke on."""

from __future__ import annotations

ESC = "\x1b"

CONTROLS = (
    f"clear {ESC}[2J{ESC}[H title {ESC}]0;owned\x07 clip {ESC}]52;c;b3duZWQ=\x07 link {ESC}]8;;http://x.y{ESC}\\here{ESC}]8;;{ESC}\\\n\n"
    f"eight bit \x9b31m \x9d0;x\x9c bell \x07 back \x08\x08\x08 tab\there nul \x00 delete \x7f return\rover\n\n"
    f"dcs {ESC}P+q544e{ESC}\\ apc {ESC}_x{ESC}\\ mouse {ESC}[?1000h{ESC}[?1049l alternate {ESC}c reset\n\n"
    f"```py\nprint('{ESC}[31m')\n\tx = '\x07'\n```\n\n| a{ESC}[5m | b\x00 |\n|---|---|\n| \x1b]2;t\x07 | \x85 |\n"
)
DIRECTIONS = (
    "right to left: שלום עולם and مرحبا بالعالم, overridden \u202eabc\u202c, isolates \u2067x\u2069.\n\n"
    "zero width: a\u200bb\u200cc\u200dd\u2060e\ufefff, combined: e\u0301 " + "z" + "\u0301" * 40 + " n\u0303.\n\n"
    "- soft\u00adhyphen\n- no\u00a0break\n- line\u2028and\u2029paragraph\n- lone \ufffd and private \ue000\n"
)
EMOJI = (
    "👩\u200d👩\u200d👧\u200d👦 👨🏽\u200d🚀 🏳️\u200d🌈 🇩🇪🇫🇷 1️⃣ ❤️ ☺ 👍🏿 🧑🏻\u200d❤️\u200d🧑🏿 漢字かな交じり文 ｆｕｌｌ\n\n"
    "| 👩\u200d👩\u200d👧 | 漢字 |\n|---|---|\n| 🇩🇪 | **👍🏿** |\n\n- 👨\u200d👩\u200d👦 `🏳️\u200d🌈` ~~❤️~~\n"
)
LONG_LINE = (
    "x" * 10_000
    + "\n\n"
    + "word " * 2000
    + "\n\n`"
    + "y" * 3000
    + "`\n\n| "
    + "z" * 1000
    + " | a |\n|---|---|\n| b | c |\n"
)
LONG_CODE = "```\n" + "k" * 10_000 + "\n" + "tab\t" * 500 + "\n```\n"
UNCLOSED = "Begin.\n\n````python title\nx = 1\n```\nstill code\n~~~\n" + "line\n" * 60 + "    never closed"
MARKUP = (
    "**bold never closed and *italic and `code\n\n[link](never closed\n\n"
    "![image](http://x.y/z.png) <script>alert(1)</script>\n\n"
    "<!-- comment\n\n[red]not markup[/red] [@click=app.quit]no[/] $var \\[ \\* &amp; &#x1b; &#0; &nosuch;\n\n"
    "***\n___\n> > > quote\n>\n> - item\n\n# \n## ##\n1.\n-\n+\n|\n||\n|-|\n\n"
    "[a]: <b> 'c'\n\n[a] [^1]\n\n[^1]: note\n\nsetext\n===\n"
)
DEEP = (
    "".join("  " * depth + f"- level {depth}\n" for depth in range(30))
    + "\n"
    + ">" * 40
    + " deep quote\n\n"
    + "*" * 500
    + "x\n"
)
BRACKETS = "[" * 300 + "x" + "]" * 300 + "\n\n" + "![" * 100 + "\n\n" + "`" * 200 + "\n\n" + "_a_" * 200 + "\n"
TABLE = "| n | words | more |\n|--:|:-:|---|\n" + "".join(f"| {n} | some **words** | `x` |\n" for n in range(500))
RAGGED = "| a | b |\n|---|---|\n| only one |\n| one | two | three | four |\n||\n|\n\n| no | rule |\n| x | y |\n"
BLANKS = "\n\n\n   \n\t\n\u3000\n \u00a0 \nend of it" + "\n" * 50

NASTY = {
    "controls": CONTROLS,
    "directions": DIRECTIONS,
    "emoji": EMOJI,
    "long line": LONG_LINE,
    "long code": LONG_CODE,
    "unclosed": UNCLOSED,
    "markup": MARKUP,
    "deep": DEEP,
    "brackets": BRACKETS,
    "table": TABLE,
    "ragged": RAGGED,
    "blanks": BLANKS,
}
