"""What stands behind the prompt, without a screen: attachments, matching, paths, drafts, lists."""

from __future__ import annotations

import asyncio
import codecs
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.app.chat.input import attach, editor, offers, paths
from outrider.app.chat.input.attach import Refused, label, pasted, read_file, with_attachments
from outrider.app.chat.input.candidate import Candidate, Entry, Menu, match, rank
from outrider.app.chat.input.drafts import Draft, Drafts
from outrider.app.chat.input.keeping import Keeping
from outrider.app.chat.input.lists import found
from outrider.app.chat.input.typing import Typing, typing
from outrider.app.chat.input.widgets import chip, line_of
from outrider.app.store.records import Attachment
from outrider.app.store.writers import Writers

# ------------------------------------------------------------------------------------------------ attachments


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("é\r\nb\r".encode(), "é\nb\n"),
        (codecs.BOM_UTF8 + b"a", "a"),
        ("\ufeffaé".encode("utf-16-le"), "aé"),
        ("aé".encode("utf-16"), "aé"),
        ("aé".encode("utf-32"), "aé"),
        (b"# -*- coding: latin-1 -*-\n\xe9", "# -*- coding: latin-1 -*-\né"),
        (b'<?xml version="1.0" encoding="iso-8859-1"?>\xe9', '<?xml version="1.0" encoding="iso-8859-1"?>é'),
        (b"", ""),
        (b"\x1b[31mred", "\x1b[31mred"),
    ],
)
def test_text_is_read(tmp_path: Path, data: bytes, text: str) -> None:
    file = tmp_path / "f.txt"
    file.write_bytes(data)
    assert read_file(file, tmp_path) == Attachment(name="f.txt", text=text, path=str(file))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"a\0b", "f.txt is not a text file."),
        (b"ab\xff", "f.txt is not UTF-8 text (byte 2) and does not say what it is."),
        (b"# coding: utf-17\n\xff", "f.txt is not the utf-17 text that it says it is."),
        (codecs.BOM_UTF16_LE + b"a", "f.txt is not the utf-16 text that it says it is."),
    ],
)
def test_what_is_no_text_is_refused_in_words(tmp_path: Path, data: bytes, words: str) -> None:
    file = tmp_path / "f.txt"
    file.write_bytes(data)
    with pytest.raises(Refused) as caught:
        read_file(file, tmp_path)
    assert caught.value.message == words


def test_folders_pipes_and_long_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").write_text("x" * 11)
    monkeypatch.setattr(attach, "LIMIT", 10)
    for name, words in (
        ("", "is a folder"),
        ("nothing", "no file nothing"),
        ("pipe", "no ordinary file"),
        ("long", "11 B"),
    ):
        with pytest.raises(Refused, match=words):
            read_file(tmp_path / name if name else tmp_path, tmp_path)


def test_what_the_model_sees_is_delimited_whatever_the_text_holds() -> None:
    code = Attachment(name="a.md", text="```\nx\n  `````\n", path="/a.md")
    told = with_attachments("Why?", [code, pasted("no end"), pasted("more", [pasted("a")])])
    assert told == (
        "File: a.md\n``````\n```\nx\n  `````\n``````\n\nPasted text\n```\nno end\n```\n\nPasted text 2\n```\nmore\n```\n\nWhy?"
    )
    assert with_attachments("Why?", []) == "Why?"


def test_labels_and_estimates() -> None:
    long = pasted("word " * 1000 + "\n")
    assert attach.is_long("\n" * 20) and attach.is_long("x" * 2001) and not attach.is_long("\n" * 19)
    assert label(long) == "pasted 1 line · 5.0 kB" and label(pasted("a\nb")) == "pasted 2 lines · 3 B"
    assert attach.estimate(long.text) == pytest.approx(1000, rel=0.01)
    assert chip(long, 2000) == ("pasted 1 line · 5.0 kB · ~1,001 tokens, 50% of the context", False)
    assert chip(long, 2000, 2.0)[0].endswith("~2,002 tokens, 100% of the context") and chip(long, 2000, 2.0)[1]
    assert chip(long, 500)[1] and chip(long, 0)[0].endswith("tokens")


def test_a_paste_of_a_megabyte_costs_little() -> None:
    text = "some words of a log line, 12345\n" * 32_000
    begun = time.process_time()
    one = pasted(text)
    assert label(one) and attach.estimate(one.text) and attach.is_long(text)
    assert time.process_time() - begun < 0.5


# ------------------------------------------------------------------------------------------------ matching


def test_better_fits_come_first() -> None:
    order = [match("mar", text) for text in ("mar", "marks", "my-marks", "summary", "m-a-r", "m_arena", "ram")]
    scores = [one[0] for one in order if one is not None]
    assert scores == sorted(scores, reverse=True) and len(scores) == 6 and order[-1] is None
    assert (match("mm", "my-marks") or (0, ()))[1] == (0, 3)
    assert match("STRASSE", "straße") is None and match("", "x") == (0, ())


def test_what_cannot_be_done_comes_last_and_titles_count_too() -> None:
    entries = rank(
        "co", [Candidate("compare", why_not="no"), Candidate("copy"), Candidate("x", also="colour"), Candidate("q")]
    )
    assert [one.candidate.text for one in entries] == ["copy", "x", "compare"]
    assert [one.sure for one in entries] == [True, False, True]
    assert [one.candidate.text for one in rank("", [Candidate("b"), Candidate("a")])] == ["b", "a"]


def test_a_menu_keeps_what_the_user_chose() -> None:
    entries = [Entry(Candidate(name)) for name in "abcd"]
    menu = Menu(entries)
    menu.move(-1)
    assert menu.chosen == entries[3] and list(menu.window(2)) == [2, 3]
    menu.show(entries[2:])
    assert menu.chosen == entries[3] and menu.moved
    menu.show(entries[:1])
    assert menu.chosen == entries[0] and not menu.moved
    menu.show([])
    assert menu.chosen is None


def test_lines_tell_why_not() -> None:
    line = line_of(Entry(Candidate("stop", "Stop it", "now", why_not="nothing\x1b runs"), (0,)), 6, chosen=True)
    text = "".join(part if isinstance(part, str) else part[0] for part in line)
    assert text == "› stop    now  Stop it  (nothing␛ runs)"


@pytest.mark.parametrize(
    ("line", "column", "what"),
    [
        ("/", 1, Typing("command", "", 0, 1)),
        ("/ma x", 2, Typing("command", "m", 0, 3)),
        ("/theme da", 9, Typing("argument", "da", 7, 9, "theme")),
        ("/theme da", 8, None),
        ("/set a b", 8, Typing("argument", "a b", 5, 8, "set")),
        ("//x", 3, None),
        ("look @no", 8, Typing("path", "no", 5, 8)),
        ('look (@"a b', 11, Typing("path", "a b", 6, 11)),
        ("a@b.c", 5, None),
        ("@a b", 4, None),
        ("plain", 5, None),
    ],
)
def test_what_is_being_typed(line: str, column: int, what: Typing | None) -> None:
    assert typing(line, column, alone=True) == what
    if line.startswith("/"):
        assert typing(line, column, alone=False) is None


# ------------------------------------------------------------------------------------------------ paths


def test_paths_below_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("src/main.py", "src/deep/model.md", ".git/config", "node_modules/x/main.js", "notes.md", "a b.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "loop").symlink_to(tmp_path)
    tree = paths.Tree(tmp_path)

    def names(query: str) -> list[str]:
        return [entry.candidate.text for entry in tree.candidates(query)]

    assert names("") == ["loop/", "node_modules/", "src/", "a b.txt", "notes.md"]
    assert (
        names("main") == ["src/main.py"]
        and names("src/m") == ["src/main.py"]
        and names("mod")[0] == "src/deep/model.md"
    )
    assert names("src/")[:2] == ["src/deep/", "src/main.py"]
    assert names(".g") == [".git/"] and names("zzz") == [] and names("/nowhere/x") == []
    assert names(f"{tmp_path}/no") == [f"{tmp_path}/notes.md", f"{tmp_path}/node_modules/"]
    (entry,) = tree.candidates("src/deep/mo")
    assert entry.sure and "".join(entry.candidate.text[at] for at in entry.places) == "mo"
    (found_one,) = [one for one in tree.candidates("src") if one.candidate.text == "src/"]
    assert found_one.candidate.more
    monkeypatch.setattr(paths, "_FILES", 3)
    assert len(list(paths.walk(tmp_path))) <= 5


# ------------------------------------------------------------------------------------------------ drafts, lists, editor


def test_drafts_survive_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    one = Drafts()
    draft = Draft("half \ud800 said", [pasted("x")])
    one.save("", draft)
    one.save("CHAT", Draft("old"))
    other = Drafts()
    assert not other.load("") and other.load("CHAT").text == "old"  # the first program runs
    one.leave()
    kept = other.load("")
    assert kept.text == "half ? said" and kept.attachments == draft.attachments
    assert other.load("").text == kept.text  # its own now
    other.save("", Draft(" "))
    other.tidy({"ELSE"})
    assert not other.load("") and not other.load("CHAT")
    broken = tmp_path / "data" / "drafts" / "BAD.json"
    broken.write_text("{")
    assert not other.load("BAD")
    assert isinstance(other._programs, Writers)
    other.leave()


def test_prompts_are_found_by_all_of_their_words() -> None:
    prompts = ["Green apples", "red\napples", "green"]
    assert [one.candidate.text for one in found("apples", prompts)] == ["Green apples", "red\napples"]
    (one,) = found("GRE app", prompts)
    assert one.places == (0, 1, 2, 6, 7, 8)
    assert len(found("", prompts)) == 3


def test_an_editor_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    monkeypatch.setenv("EDITOR", "false --flag 'a b'")
    monkeypatch.delenv("VISUAL", raising=False)
    assert editor.command() == ["false", "--flag", "a b"]
    with pytest.raises(editor.NoEditor, match="false ended with code 1"):
        editor.edit("text", ["false"])
    with pytest.raises(editor.NoEditor, match="could not be started"):
        editor.edit("text", ["/nowhere/editor"])
    monkeypatch.setenv("EDITOR", "vi 'unclosed")
    with pytest.raises(editor.NoEditor, match="cannot be read"):
        editor.command()
    assert editor.edit("text", ["true"]) == "text" and editor.edit("", ["true"]) == ""
    (script := tmp_path / "look.sh").write_text(
        f'stat -c %a "$1" "$(dirname "$1")" > {tmp_path}/modes; dirname "$1" >> {tmp_path}/modes'
    )
    editor.edit("text", ["sh", str(script)])
    *modes, folder = (tmp_path / "modes").read_text().split()
    assert modes == ["600", "700"] and folder.startswith(f"{tmp_path}/state/") and not Path(folder).exists()


def test_words() -> None:
    assert [one.text for one in offers.words("a", "b")] == ["a", "b"]


async def test_a_program_that_ends_while_it_still_looks_for_drafts() -> None:
    """The chats are read in a thread; what was typed may be written for good before they are known."""
    prompt = SimpleNamespace(text="half a thought", attachments=(), put=lambda text, files: None)
    screen: Any = SimpleNamespace(prompt=prompt, session=None)
    keeping = Keeping(screen)

    async def ask(look: Any) -> set[str]:
        keeping.close()
        return set()

    screen.session = SimpleNamespace(
        options=SimpleNamespace(private=False, resume=""),
        keeper=SimpleNamespace(ask=ask),
        chat=SimpleNamespace(id="one"),
        opened=asyncio.Event(),
    )
    screen.session.opened.set()
    await keeping.begin()
    assert Drafts().load("one").text == "half a thought"
