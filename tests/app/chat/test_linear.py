"""The chat in plain lines: what is printed, letter by letter, and that it keeps chats as the screen does."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from chat_support import answer, fails, loading, thoughtful
from test_process import Terminal

from outrider.app.chat import ChatOptions
from outrider.app.chat.actions import ACTIONS, BY_ID
from outrider.app.chat.session import State
from outrider.app.linear import run_linear
from outrider.app.linear.commands import HERE
from outrider.app.linear.desk import Desk
from outrider.app.linear.reader import Reader
from outrider.app.linear.speech import Sentences
from outrider.app.store.chats import Store

Talk = Callable[..., str]


@pytest.fixture
def talk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Talk:
    """What is printed when these lines are typed to an engine that gives these answers in turn."""
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))

    def call(lines: Sequence[str], *answers: list[dict[str, Any]], **options: Any) -> str:
        trace = tmp_path / "trace.jsonl"
        cues = [*loading(), *(cue for one in answers for cue in one)]
        trace.write_text("\n".join(map(json.dumps, cues)) + "\n")
        options.setdefault("command", (sys.executable, "-m", "outrider.app.scripted", str(trace), "--speed", "0"))
        out = io.StringIO()
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        monkeypatch.setattr(sys, "stdout", out)
        try:
            assert run_linear(ChatOptions(**options)) == 0
        finally:
            monkeypatch.undo()
            monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
        return out.getvalue()

    return call


GOLDEN = """\
Outrider, a chat in plain lines. /help lists the commands; ctrl+c stops a reply, twice it quits.
Loading starter.
Ready: Tiny Test 1M, drafter auto.
You: Hello
Assistant: Rivers. There are many:

1. The Seine, e.g. in Paris.
2. The Rhine \N{SYMBOL FOR ESCAPE}[31m!
15 tokens in 0.0 seconds, 3.8 tokens per pass, 50 percent of the guesses accepted, drafter prompt_lookup.

You: /drafter none
Drafting off: one token a pass.
You: /marks
/marks works only on the screen.
You: /frob
There is no command /frob. /help lists them.
You: /driften
There is no command /driften. Did you mean drafter?
You: Think
The model is thinking.
It thought for 0.0 seconds, 5 tokens. /thought tells what.
Assistant: Done.
6 tokens in 0.0 seconds, 1.2 tokens per pass, no drafting.

You: /thought
Hm, let me.
You: /quit
Goodbye.
"""


def test_a_chat_in_lines(talk: Talk) -> None:
    first = answer("Rivers. There are many:\n\n1. The Seine, e.g. in Paris.\n2. The Rhine \x1b[31m!\n", "PAC")
    second = thoughtful("Hm, let me.", "Done.")
    typed = ["Hello", "/drafter none", "/marks", "/frob", "/driften", "Think", "/thought", "/quit", "never read"]
    assert talk(typed, first, second) == GOLDEN


def test_chats_are_kept_and_gone_on_with(talk: Talk) -> None:
    talk(["First question", "/rename Kept"], answer("An answer.\n"))
    told = talk(["/chats"], answer("x\n"))
    listed = told.partition("You: /chats\n")[2]
    name = listed.partition(":")[0]
    assert ": Kept, " in listed and "1 message." in listed
    told = talk([f"/chats {name}", "/chats nope", "And now?"], answer("More.\n"))
    assert "This chat has 1 message.\nYou: First question\nAssistant: An answer.\n" in told
    assert "nope" in told and "Assistant: More.\n" in told
    with Store.open() as store:
        last = store.resolve("last")
    assert "This chat has 2 messages.\nYou: And now?\nAssistant: More." in talk([], answer("x\n"), resume=last)


def test_commands_of_the_registry(talk: Talk, tmp_path: Path) -> None:
    assert HERE.keys() <= BY_ID.keys() and all(BY_ID[name].slash for name in HERE)
    file = tmp_path / "out.md"
    typed = [
        "Hi \\",
        "there",
        "/set temperature 0.5",
        "/system Be brief.",
        "/think off",
        "/persona",
        "/drafter",
        "/stop",
    ]
    typed += [f"/export {file}", "/delete", "/undo", "/drafting", "/new", "/new now", "//slash", "/thought"]
    typed += ["/settings sampling.top_k 5", "/settings sampling.top_k", "/settings look.width x", "/settings theme"]
    typed += ["/settings nothing like it", "/help", "/help tokens/pass", "/help nothing like it"]
    told = talk(typed, answer("Yes.\n"))
    for words in [
        "You: Hi \\\nMore: there\n",
        "Sampling: temperature 0.5",
        "System prompt: Be brief.",
        "Thinking: off.",
        "Persona: none.",
        "Drafter: auto. Usable here: auto, none, prompt_lookup, suffix.",
        "No reply is running.",
        f"Wrote this chat to {file}",
        "Deleted “Hi there”; /undo brings it back.",
        "Brought back “Hi there”.",
        "A new chat.\n",
        "/new takes nothing after it.",
        "The last reply began with no thought.",
        "sampling.top_k is 5.",
        "now: 5 · config.toml, line",
        "width must be a whole number",
        "look.theme: auto.",
        "No setting has: nothing like it.",
        "/drafter name: Switch to a drafter by name; alone it lists them.",
        "tokens/pass: Tokens written per pass",
        "Nothing in the help has all of: nothing like it.",
    ]:
        assert words in told, words
    assert "Hi \nthere" in file.read_text() and "/marks" not in told.partition("/help\n")[2].partition("You:")[0]


def test_branches_files_and_reasons(talk: Talk, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("secret")
    typed = [
        "/regen",
        "/continue",
        "/edit",
        "/older",
        "/why",
        "Q",
        "/regen",
        "/older",
        "/newer",
        "/newer",
        "/edit",
        "Q2",
    ]
    typed += ["/delete message", "/undo", "/delete nothing", "/file", f"/file {tmp_path}/notes.txt", "With it", "/why"]
    typed += ["/verify", "/model", "/restart", "/file nope.txt", "/new", "/verify"]
    told = talk(typed, answer("One.\n", "PA"), answer("Two.\n", "PA"), answer("Three.\n"), answer("Four.\n"))
    said: dict[str, list[str]] = {}
    rest = told
    for line, following in zip(typed, [*typed[1:], ""], strict=True):
        rest = rest.partition(f"You: {line}\n")[2]
        said.setdefault(line, []).append(rest.partition(f"You: {following}\n")[0] if following else rest)
    assert said["/regen"][0] == said["/edit"][0] == "Nothing was said here yet.\n"
    assert said["/continue"] == ["There is no reply that was cut.\n"]
    assert said["/older"][0] == "There are no branches here.\n"
    assert "Assistant: Two.\n" in said["/regen"][1]
    assert said["/older"][1].startswith("The chat goes on after 1 message:\n") and "Assistant: One." in told
    assert said["/newer"][0].endswith("Assistant: Two.\n") and "no other branch" in said["/newer"][1]
    assert "which was:\nQ\n" in said["/edit"][1] and "Assistant: Three.\n" in said["Q2"][0]
    assert "is deleted" in said["/delete message"][0] and "rought" in said["/undo"][0]
    assert "/delete message the last" in said["/delete nothing"][0] and "needs a path" in said["/file"][0]
    assert "notes.txt · 6 B, about 1 tokens" in told and "Assistant: Four.\n" in said["With it"][0]
    assert len(said["/why"][1]) > 20 and said["/model"][0].startswith("This chat uses starter.")
    assert said["/verify"][0].startswith("Writing the reply once more without drafts.\n")
    assert len(said["/verify"][0].splitlines()[1]) > 20 and said["/verify"][1].startswith("Not now: no reply")
    assert said["/restart"][0].startswith("Loading starter.\nReady: ") and "There is no file nope.txt." in told


def test_what_goes_wrong_is_said_in_words(talk: Talk) -> None:
    told = talk(["too much"], fails("The message is too long.", "Make it shorter."))
    assert "Error: The engine refused.\nThe message is too long.\nMake it shorter.\n" in told
    assert "The message was not taken" in told
    told = talk(["hello"], command=(sys.executable, "-c", "raise SystemExit(3)"))
    assert "Error: The engine did not come up.\nThe engine process ended with exit code 3." in told


def test_sentences_lose_nothing() -> None:
    text = "One. Two (three!) *four.* 5.5 e.g. this?\n3. Item\n```\nx = 1.\n```\n" + "word " * 200 + "中文。好"
    for size in (1, 2, 3, 7, 1000):
        sentences, said = Sentences(), []
        for at in range(0, len(text), size):
            said.append(sentences.add(text[at : at + size]))
        said.append(sentences.rest())
        assert "".join(said) == text
        pieces = [piece for piece in said if piece]
        if size == 1:
            assert pieces[:4] == ["One. ", "Two (three!) ", "*four.* ", "5.5 e.g. "]
            assert "3. Item\n" in pieces and any(piece.endswith("中文。") for piece in pieces)
            assert max(map(len, pieces)) <= 402


def test_an_ending_without_a_line(talk: Talk) -> None:
    out = io.StringIO()
    assert Reader(io.StringIO("\n  \na\\\nb"), out).ask() == "a\nb"
    assert Reader(io.StringIO("a\\\n"), out).ask() == "a" and Reader(io.StringIO(""), out).ask() is None


def test_lines_that_come_together_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    reader = Reader(io.StringIO(""), out)
    typed, behind = (
        iter(["one", "three!", "four", "caf\udce9"]),
        iter([b"two\r\x1b[200~thr", b"", b"five\n\xe9\n", b""]),
    )
    stood: list[str] = []
    monkeypatch.setattr(reader, "_terminal", True)
    monkeypatch.setattr(reader, "_waiting", lambda: next(behind))
    monkeypatch.setattr("builtins.input", lambda _: next(typed))
    line = reader._line
    monkeypatch.setattr(reader, "_line", lambda prompt, typed: stood.append(prompt + typed) or line(prompt, typed))
    assert reader.ask() == "one\ntwo\nthree!" and stood == ["You: ", "More: thr"]
    assert reader.ask() == "four\nfive\n\ufffd" and reader.ask() == "caf\ufffd"
    assert out.getvalue() == "More: two\nMore: five\nMore: \ufffd\n"


def test_what_is_typed_while_a_reply_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    out, now = io.StringIO(), [10.0]
    reader = Reader(io.StringIO(""), out)
    loop = SimpleNamespace(remove_reader=lambda _: None)
    monkeypatch.setattr("outrider.app.linear.reader.monotonic", lambda: now[0])
    reading, writing = os.pipe()
    for line, pause in ((b"first\n", 1.0), (b"second\n", 0.001), (b"caf\xe9\n", 1.0), (b"/quit\n", 1.0)):
        os.write(writing, line)
        reader._take(cast(Any, loop), reading)
        now[0] += pause
    os.close(writing)
    reader._take(cast(Any, loop), reading)
    os.close(reading)
    assert [reader.ask() for _ in range(4)] == ["first", "second\ncaf\ufffd", "/quit", None]


def test_ctrl_c_is_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    out, now, keys = io.StringIO(), [10.0], iter([0.0, 5.0, 1.0])
    reader = Reader(io.StringIO(""), out)

    def pressed(prompt: str, typed: str) -> str:
        now[0] += next(keys)
        raise KeyboardInterrupt

    monkeypatch.setattr(reader, "_line", pressed)
    monkeypatch.setattr("outrider.app.linear.reader.monotonic", lambda: now[0])
    assert reader.ask() is None and out.getvalue().count("again to quit") == 2


def test_lines_hold_no_control_characters_and_no_boxes() -> None:
    assert all(letter.isprintable() or letter == "\n" for letter in GOLDEN)
    assert not set(GOLDEN) & set("─│╭╮╰╯▁▂▃▄▅▆▇█⠋⠙") and len(ACTIONS) > len(HERE)


def test_in_a_terminal_with_history_and_two_times_ctrl_c(tmp_path: Path) -> None:
    program = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that ctrl+c is a signal
from outrider.app.chat import ChatOptions
from outrider.app.linear import run_linear
print("code", run_linear(ChatOptions(command=(sys.executable, "-m", "outrider.app.scripted", sys.argv[1]))))
assert "torch" not in sys.modules
"""
    with Terminal(tmp_path, program) as terminal:
        terminal.until(b"Ready: Tiny Test 1M, drafter auto.")
        terminal.until(b"You: ")
        terminal.type(b"hi\r")
        terminal.until(b"Assistant: Hello there.")
        terminal.until(b"no drafting.")
        terminal.type(b"\x1b[A")  # the message before
        while b"hi" not in terminal.seen.rpartition(b"no drafting.")[2]:
            terminal.seen += os.read(terminal.fd, 1 << 16)
        terminal.press(b"\x03", b"Press ctrl+c again to quit.")
        terminal.press(b"\x03", b"code 0")
        assert b"Goodbye." in terminal.seen and terminal.process.wait(10) == 0
        assert b"\x1b[?1049h" not in terminal.seen and b"Traceback" not in terminal.seen


async def test_a_reply_is_stopped_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, [*loading(), *answer("One. " * 400, pause=0.05)])) + "\n")
    out = io.StringIO()
    desk = Desk(ChatOptions(command=(sys.executable, "-m", "outrider.app.scripted", str(trace))), out)
    try:
        await desk.begin()
        asking = asyncio.create_task(desk.take("go"))
        while "One. " not in out.getvalue():
            await asyncio.sleep(0.01)
        desk.interrupt()
        await asking
        assert "Stopped. What was written is kept.\n" in out.getvalue() and not desk.left
        asking = asyncio.create_task(desk.take("again"))
        while desk.session.state is not State.WRITING:
            await asyncio.sleep(0.01)
        desk.interrupt()
        desk.interrupt()
        await asyncio.wait_for(asking, 20)
        assert desk.left
    finally:
        await desk.close()
