"""Finding words in the transcript."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chat_support import Ride, answer, thoughtful

from outrider.app.chat.finding import Finder, Hit, nearest_from
from outrider.app.chat.reply import ReplyView
from outrider.app.chat.talk import End, Reply, Turn


def turn(said: str, text: str, thought: str = "") -> Turn:
    """A turn that is over."""
    reply = Reply()
    reply.answer.add(text, "P")
    reply.thought.add(thought, "P")
    return Turn(said, reply)


def found(one: Turn, words: str) -> list[str]:
    """Where the words are, as they were written."""
    texts = {
        "said": one.text,
        "thought": one.reply.thought.text if one.reply else "",
        "answer": one.reply.text if one.reply else "",
    }
    return [f"{hit.part}: {texts[hit.part][hit.start : hit.end]}" for hit in Finder().hits(one, words)]


def test_words_are_found_as_they_are_seen() -> None:
    text = "Some **bold\nwords** in a [bold words](http://bold.words/x).\n\n```\nbold words\n```\n\n"
    text += "| a | BOLD  words |\n|---|---|\n"
    one = turn("Bold  words?", text, "think bold words")
    assert found(one, "bold words") == [
        "said: Bold  words",
        "thought: bold words",
        "answer: bold\nwords",
        "answer: bold words",
        "answer: bold words",
        "answer: BOLD  words",
    ]
    assert found(turn("", "wo*rd*s &amp; *co*"), "words & co") == ["answer: wo*rd*s &amp; *co"]
    assert found(one, "http") == [] and found(one, " ") == [] and found(one, "a.*b") == []
    assert found(Turn("alone"), "one") == ["said: one"]


def test_what_grows_is_rendered_again() -> None:
    one, finder = turn("", "first"), Finder()
    assert len(list(finder.hits(one, "first"))) == 1
    assert one.reply is not None
    one.reply.answer.add(" and *first*", "A")
    assert len(list(finder.hits(one, "first"))) == 2


def test_the_search_begins_where_one_reads() -> None:
    turns = [turn(str(n), "x") for n in range(4)]
    hits = [Hit(turns[n], "answer", 0, 1) for n in (0, 0, 2)]
    assert [nearest_from(hits, turns, seen) for seen in (turns[0], turns[1], turns[2], turns[3], None)] == [
        0,
        2,
        2,
        2,
        0,
    ]
    assert nearest_from([], turns, turns[0]) == 0


def marked(chat: Ride) -> list[str]:
    """What the screen shows as the hit that is looked at."""
    parts = [part for strip in chat.app.screen._compositor.render_strips() for part in strip]
    return [part.text for part in parts if part.style and part.style.reverse and part.style.bold]


async def test_find_on_the_screen(ride: Any, tmp_path: Path) -> None:
    filler = "\n\n".join(f"paragraph {n}" for n in range(30))
    one = answer(f"The **needle\none** is here.\n\n{filler}\n")
    two = thoughtful(
        f"{filler}\n\nA needle in thought.\n\n{filler}\n", f"{filler}\n\n- item\n- the needle two\n\n{filler}\n"
    )
    three = answer("Nothing but hay.\n")
    async with ride(one, two, three) as chat:
        for said in ("first", "second needle", "third"):
            await chat.ask(said)
        views = list(chat.chat.query(ReplyView))
        await chat.until(lambda: views[0].frozen)
        await chat.pilot.press("ctrl+f")
        await chat.until(lambda: chat.app.focused is not None and chat.app.focused.parent is not None)
        await chat.pilot.press(*"needle")
        find = chat.chat.find
        await chat.until(lambda: find.told() == "4/4" and "4/4" in chat.screen())
        await chat.until(lambda: marked(chat) == ["needle"] and "the needle two" in chat.screen())
        await chat.pilot.press("enter")  # around the end
        await chat.until(lambda: "1/4" in chat.screen() and marked(chat) == ["needle"])
        assert "needle" in chat.screen() and not views[0].frozen
        await chat.pilot.press("down")
        await chat.until(lambda: "2/4" in chat.screen() and "second needle" in chat.screen())
        await chat.until(lambda: marked(chat) == ["needle"])
        await chat.pilot.press("enter")
        await chat.until(lambda: "3/4" in chat.screen() and "A needle in thought." in chat.screen())
        assert views[1].thought is not None and not views[1].thought.folded
        await chat.until(lambda: marked(chat) == ["needle"])
        await chat.pilot.press("up", "up")
        await chat.until(lambda: "1/4" in chat.screen() and marked(chat) == ["needle"])
        views[0].focus()
        await chat.pilot.press("N")
        await chat.until(lambda: "4/4" in chat.screen())
        await chat.pilot.press("n")
        await chat.until(lambda: "1/4" in chat.screen())
        await chat.pilot.press("escape")
        await chat.until(lambda: not chat.chat.query("#find"))
        await chat.until(lambda: not marked(chat) and chat.chat.focused is chat.chat.prompt)
        await chat.type("/find needle\u0020one")
        await chat.until(lambda: "1/1" in chat.screen() and marked(chat) == ["needle", "one"])
        await chat.type("/find hay")
        await chat.until(lambda: "1/1" in chat.screen() and marked(chat) == ["hay"])
        await chat.pilot.press("escape")
        await chat.type("/find-next")
        assert "nothing is searched for" in chat.status
        turns = [turn(f"question {n}", f"reply {n}\n") for n in range(50)]
        for turn_ in turns:
            assert turn_.reply is not None
            turn_.reply.end = End.WHOLE
        transcript = chat.chat.transcript
        for view in (await transcript.show(turns, ())).values():
            await view.paint()
        assert transcript.message_of(turns[2]) is None
        await transcript.reveal(turns[2])
        shown = transcript.view_of(turns[2])
        assert transcript.message_of(turns[2]) and shown is not None and shown.finished
