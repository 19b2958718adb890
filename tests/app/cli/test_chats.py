"""`outrider chats`, and the chat's own options for going on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from outrider.app.commands import _resume
from outrider.app.store.chats import Store
from outrider.app.store.opening import store_path
from outrider.app.store.problems import Damaged
from outrider.app.store.records import Answer, Chat, Node, Settings, short
from outrider.core.base.protocol import DrafterChoice, ModelChoice, Sampling

FIRST, SECOND = "01M8NPQT75RJ1Z89YSME158Z10", "01M8NPQT75RJ1Z89YSME158A11"
KEPT = Settings(
    model=ModelChoice(model="org/model", context=512),
    drafter=DrafterChoice(name="suffix", tokens=5),
    sampling=Sampling(temperature=0.5, top_k=9),
    rule="rejection",
    think=False,
)


def say(store: Store, chat: str, *texts: str) -> None:
    head = None
    for number, text in enumerate(texts):
        role = "assistant" if number % 2 else "user"
        node = Node(id=f"{chat}{number}", role=role, text=text, parent=head, created=1e9)
        node.answer = Answer(marks="P4A4") if number % 2 else None
        store.put_node(chat, node)
        head = node.id
    store.set_head(chat, head)


@pytest.fixture
def filled(home) -> None:
    """Two chats, the second written in last."""
    with Store.open() as store:
        with store.changing():
            store.put_chat(
                Chat(id=FIRST, title="About rivers", created=1e9, updated=1e9, system="Be kind.", settings=KEPT)
            )
            say(store, FIRST, "Which river is long?", "The Nile\x1b]0;x\x07 is.")
            store.put_chat(Chat(id=SECOND, title="Hills\x1b[31m", created=1e9, updated=1e9))
            say(store, SECOND, "Which hill?")
        store.index()


def test_an_empty_home_says_how_to_begin(outrider):
    done = outrider("chats", "list")
    assert (done.code, done.out) == (0, "") and "no chat yet" in done.err
    assert outrider("chats", "list", "--json").out.strip() == "[]"
    done = outrider("chats", "show")
    assert done.code == 1 and "There is no chat yet" in done.err


@pytest.mark.usefixtures("filled")
def test_list(outrider):
    done = outrider("chats", "list")
    head, first, second = done.out.splitlines()
    assert head.split() == ["ID", "LAST", "MESSAGES", "MODEL", "TITLE"] and "\x1b" not in done.out
    assert first.startswith("me158a11") and first.endswith("Hills[31m") and second.startswith("me158z10")
    rows = json.loads(outrider("chats", "list", "--json", "-n", "1").out)
    assert [(row["id"], row["messages"], row["model"]) for row in rows] == [(SECOND, 1, "starter")]


@pytest.mark.usefixtures("filled")
def test_search(outrider):
    done = outrider("chats", "search", "nile")
    assert done.code == 0 and "About rivers" in done.out and "reply: The Nile" in done.out and "\x1b" not in done.out
    (hit,) = json.loads(outrider("chats", "search", "river", "which", "--json").out)
    assert hit["chat"] == FIRST and hit["role"] == "user" and len(hit["marked"]) == 2
    done = outrider("chats", "search", 'a" OR "b')
    assert done.code == 1 and "No message has all of these words" in done.err
    assert outrider("chats", "search").code == 2


@pytest.mark.usefixtures("filled")
def test_show(outrider):
    done = outrider("chats", "show", "z10")
    assert done.code == 0 and "\x1b" not in done.out
    assert "System:\nBe kind.\n" in done.out and "You:\nWhich river is long?\n" in done.out and "The Nile" in done.out
    assert json.loads(outrider("chats", "show", "z10", "--json").out)["chat"]["id"] == FIRST
    assert "Which hill?" in outrider("chats", "show").out
    done = outrider("chats", "show", "nothing")
    assert done.code == 1 and "There is no chat nothing" in done.err and "chats list" in done.err


@pytest.mark.usefixtures("filled")
def test_export_and_import(outrider, tmp_path: Path):
    assert outrider("chats", "export", "z10").out.startswith("---\ntitle: ")
    for name, begin in {
        "a.md": "---",
        "a.markdown": "---",
        "a.html": "<!doctype",
        "a.svg": "<svg",
        "a.json": "{",
    }.items():
        done = outrider("chats", "export", "z10", "-o", str(tmp_path / name))
        assert (done.code, done.out) == (0, "") and "Wrote “About rivers”" in done.err
        assert (tmp_path / name).read_text().startswith(begin) and "\x1b" not in (tmp_path / name).read_text()
    ElementTree.parse(tmp_path / "a.svg")
    file = tmp_path / "all.json"
    assert "Wrote 2 chats" in outrider("chats", "export", "--all", "-o", str(file)).err
    assert "2 chats were here already" in outrider("chats", "import", str(file)).err
    store_path().unlink()
    done = outrider("chats", "import", str(file), "--json")
    assert [one["title"] for one in json.loads(done.out)["imported"]] == ["Hills\x1b[31m", "About rivers"]
    assert "river" in outrider("chats", "search", "long").out
    assert not list(tmp_path.glob(".*"))


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--all"], "md holds one chat only"),
        (["z10", "a11", "-f", "html"], "html holds one chat only"),
        (["--all", "z10", "-f", "json"], "exclude each other"),
        (["-o", "chat.docx"], ".docx is none of the formats"),
    ],
)
def test_exports_that_cannot_be(outrider, words, says):
    done = outrider("chats", "export", *words)
    assert done.code == 2 and says in done.err


def test_imports_from_stdin_and_bad_files(outrider, tmp_path: Path):
    talk = json.dumps([{"role": "user", "content": "Hi"}, {"role": "tool", "content": "3"}])
    done = outrider("chats", "import", "-", stdin=talk)
    assert done.code == 0 and "Imported 1 chat." in done.out and "Left out 1 message " in done.err
    bad = tmp_path / "bad.json"
    bad.write_text("[{]")
    done = outrider("chats", "import", str(bad))
    assert done.code == 1 and "bad.json cannot be imported. It is no JSON" in done.err and "Open WebUI" in done.err
    done = outrider("chats", "import", str(tmp_path / "none.json"))
    assert done.code == 1 and "No such file" in done.err and "Traceback" not in done.err


@pytest.mark.usefixtures("filled")
def test_rm_asks_first_and_undo_brings_back(outrider, screen):
    done = outrider("chats", "rm", "z10")
    assert done.code == 2 and "--yes" in done.err
    terminal = screen("chats", "rm", "z10")
    terminal.read_until(b"[y/N]")
    terminal.type(b"n\n")
    code, seen = terminal.finish()
    assert code == 1 and "Delete “About rivers”, 1 message?".encode() in seen and b"Nothing was deleted" in seen
    done = outrider("chats", "rm", "z10", "a11", "--yes")
    assert done.code == 0 and "Deleted “About rivers”." in done.out and "--undo" in done.err
    assert outrider("chats", "list").out == ""
    assert "Hills" in outrider("chats", "rm", "--undo").out
    assert json.loads(outrider("chats", "rm", "--undo", "--json").out) == [{"id": FIRST, "title": "About rivers"}]
    done = outrider("chats", "rm", "--undo")
    assert done.code == 1 and "nothing to bring back" in done.err
    assert outrider("chats", "rm").code == outrider("chats", "rm", "z10", "--undo").code == 2
    assert len(outrider("chats", "list").out.splitlines()) == 3


@pytest.mark.usefixtures("filled")
def test_a_store_that_is_only_a_copy(outrider):
    store_path().chmod(0o444)
    done = outrider("chats", "list")
    assert done.code == 0 and len(done.out.splitlines()) == 3 and "read-only" in done.err and "chmod" in done.err
    for words in (["rm", "z10", "--yes"], ["rm", "--undo"], ["import", "-"]):
        done = outrider("chats", *words)
        assert done.code == 1 and "read-only" in done.err
    store_path().chmod(0o644)
    store_path().write_bytes(b"garbage" * 99)
    done = outrider("chats", "list")
    assert done.code == 1 and done.out == "" and "is not a file of chats" in done.err and "no chat yet" not in done.err
    assert store_path().read_bytes() == b"garbage" * 99


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    "words", [["list"], ["show"], ["search", "river"], ["export", "--all", "-f", "json"], ["rm", "z10", "-y"]]
)
def test_a_store_that_cannot_be_read(outrider, words):
    store_path().write_bytes(b"")
    done = outrider("chats", *words)
    assert (
        done.code == 1
        and done.out == ""
        and "Nothing of it can be read" in done.err
        and "no chat" not in done.err.lower()
    )


@pytest.mark.usefixtures("filled")
def test_a_damaged_store_is_exported_and_says_what_it_lost(outrider):
    data = store_path().read_bytes()
    store_path().write_bytes(bytes(100) + data[100:])
    done = outrider("chats", "export", "--all", "-f", "json")
    assert done.code == 0 and [chat["chat"]["title"] for chat in json.loads(done.out)["chats"]][1] == "About rivers"
    assert "The chats were damaged and are repaired. No message was lost." in done.err and "chats.damaged-" in done.err
    done = outrider("doctor")
    assert "the damaged file is kept as" in done.out and done.err == "No problems.\n"


@pytest.mark.usefixtures("filled")
def test_damage_that_is_found_while_it_exports(outrider, monkeypatch):
    def fails(self, chat):
        monkeypatch.undo()
        raise Damaged("The chats are damaged (found late).")

    monkeypatch.setattr(Store, "load", fails)
    done = outrider("chats", "export", "--all", "-f", "json")
    assert done.code == 0 and len(json.loads(done.out)["chats"]) == 2 and "found late" in done.err


def going(monkeypatch: pytest.MonkeyPatch, outrider, *words: str):
    """What the chat would begin with."""
    from outrider.app import chat as package
    from outrider.app import render

    seen = []
    monkeypatch.setattr(render, "is_terminal", lambda _: True)
    monkeypatch.setattr(package, "run_chat", lambda options: seen.append(options) or 0)
    done = outrider(*words)
    assert len(seen) == 1, done.err
    return seen[0]


@pytest.mark.usefixtures("filled")
def test_going_on_with_what_the_chat_was_held_with(outrider, monkeypatch: pytest.MonkeyPatch):
    options = going(monkeypatch, outrider, "--continue")
    assert options.resume == SECOND and options.model.model == "starter" and options.system is None
    options = going(monkeypatch, outrider, "--resume", "z10")
    assert options.resume == FIRST and options.model == KEPT.model and options.drafter == KEPT.drafter
    assert options.sampling == KEPT.sampling and options.system == "Be kind."
    assert (options.rule, options.think, options.private) == ("rejection", False, False)


@pytest.mark.usefixtures("filled")
def test_what_is_typed_comes_first(outrider, monkeypatch: pytest.MonkeyPatch):
    typed = ("--resume", "z10", "--top-k", "3", "-s", "Be short.", "--think", "--threads", "2", "-d", "none")
    options = going(monkeypatch, outrider, *typed)
    assert (options.sampling.top_k, options.sampling.temperature) == (3, 0.5) and options.system == "Be short."
    assert options.model == ModelChoice(model="org/model", context=512, threads=2) and options.think is True
    assert options.drafter.name == "none" and options.drafter.tokens is None
    options = going(monkeypatch, outrider, "--resume", "z10", "-m", "other")
    assert options.model == ModelChoice(model="other") and options.drafter == DrafterChoice()
    assert options.sampling == KEPT.sampling
    options = going(monkeypatch, outrider, "--private")
    assert options.private and options.resume == ""


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--continue",), 1, "There is no chat yet"),
        (("--resume", "x"), 1, "There is no chat x"),
        (("--continue", "--resume", "x"), 2, "exclude each other"),
        (("--private", "--continue"), 2, "--private begins a chat of its own"),
    ],
)
def test_nothing_to_go_on_with(outrider, monkeypatch: pytest.MonkeyPatch, words, code, says):
    from outrider.app import render

    monkeypatch.setattr(render, "is_terminal", lambda _: True)
    done = outrider(*words)
    assert done.code == code and says in done.err


def test_short_names_are_what_people_see():
    assert short(FIRST) == "me158z10" and _resume.find_chat(None, last=False, private=False) == (None, "")


def test_the_store_loads_no_screen_library():
    program = "import sys, outrider.app.commands.chats, outrider.app.store.page, outrider.app.store.picture\n"
    program += "import outrider.app.store.imports, outrider.app.store.keeper\nassert 'textual' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.usefixtures("filled")
def test_a_chat_that_another_window_has_open(outrider, tmp_path):
    def find(word: str | None = None) -> tuple[str, str]:
        chat, told = _resume.find_chat(word, last=word is None, private=False)
        return (chat.id if chat else ""), told

    assert find() == find("last") == (SECOND, "")
    with Store.open() as other:
        other.hold(SECOND)
        assert find() == find("last") and find()[0] == FIRST
        assert find()[1].endswith("” is open in another window; this is the newest chat that is not.")
        row = json.loads(outrider("chats", "list", "--json", "-n", "1").out)[0]
        assert (row["id"], row["in_use"]) == (SECOND, True)
        done = outrider("chats", "rm", "--yes", short(FIRST), short(SECOND))
        assert done.code == 1 and "open in another Outrider window" in done.err and "nothing was deleted" in done.err
        assert len(other.chats()) == 2
        name, told = find(short(SECOND))  # nothing in it was answered yet
        assert name == "" and "this is a new chat" in told
        assert outrider("chats", "export", "--all", "-o", str(tmp_path / "all.json")).code == 0
        done = outrider("chats", "import", str(tmp_path / "all.json"))
        assert done.code == 0 and "here already" in done.err and len(other.chats()) == 2
        other.hold(FIRST)
        name, told = find(short(FIRST))
        assert name not in (FIRST, SECOND, "") and "This is a copy of it" in told
        assert other.load(name).path()[0].text == "Which river is long?"
        other.delete_chat(name)
        with Store.open() as third:
            third.hold(SECOND)
            name, told = find()
            assert name == "" and "“About rivers” are open in other windows, and there is no other chat" in told
