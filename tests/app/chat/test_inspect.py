"""The token inspector and the history of drafters: what they know, how they walk, and both on the screen."""

from __future__ import annotations

from typing import Any

from chat_support import answer, end, step

from outrider.app.chat.history.lines import lines as table
from outrider.app.chat.history.past import WEEK, past
from outrider.app.chat.inspect.cursor import Cursor
from outrider.app.chat.inspect.lines import lines, percent, quoted
from outrider.app.chat.inspect.trail import Memory, Passage, joined, of_node, of_step
from outrider.app.chat.stats.lines import sparkline
from outrider.app.chat.talk import Reply
from outrider.app.chat.terms import TERMS
from outrider.app.store.records import Answer, Kept, Node, Pass, Settings
from outrider.core.base.protocol import RejectedToken, Report, Speedup, Step, Timing, Token


def detailed(seq: int, *tokens: tuple[str, str], rejected: tuple[tuple[str, int], ...] = ()) -> Step:
    """A pass with details; `rejected` as text and depth from 0."""
    made = [Token(seq, text, kind, p=0.9) for text, kind in tokens]  # type: ignore[arg-type]
    accepted = sum(kind == "A" for _, kind in tokens)
    wrong = [RejectedToken(9, text, depth, depth - 1, 0.0004) for text, depth in rejected]
    return Step(
        *(1, seq, seq / 10, "suffix" if seq else "none", accepted + len(wrong), accepted, made, 1.1, 9.8, 0.4),
        rejected=wrong,
        top=[[(1, 0.9), (2, 0.06)] for _ in made],
        top_text=[[text, " other"] for text, _ in tokens],
    )


STEPS = [
    detailed(0, ("The", "P")),
    detailed(1, (" cat", "A"), (" sat", "A"), (" on", "C"), rejected=((" in", 2), (" a", 3))),
    detailed(2, ("\n", "P")),
]


def texts(cursor: Cursor, width: int = 40) -> str:
    made = lines(cursor, width)
    assert all(len(line.text) <= width for line in made)
    assert not {term for line in made for term in line.terms} - set(TERMS)
    return "\n".join(line.text for line in made)


def test_a_pass_is_told_as_it_came() -> None:
    cursor = Cursor([of_step(one) for one in STEPS])
    assert cursor.token is not None and cursor.token.text == "\n" and cursor.follows
    cursor.step(-1)
    told = texts(cursor)
    for words in ("pass 1 of 2", "suffix", "ms draft 1.1 verify 9.8 host 0.4", "2 of 4 guesses accepted", "✓ 1   “ cat”",
                  "✓ 2   “ sat”", "✗ 3   “ in”", "<0.1%", "→     “ on”", "too late", "correction, 90.0%", " 6.0%",
                  "“ other”", "The cat sat on⏎"):  # fmt: skip
        assert words in told, (words, told)
    assert told.index("✗ 3") < told.index("→") < told.index("✗ 4") and "was not kept" not in told
    chosen = [part for line in lines(cursor, 40) for part, style in line.parts if style == "reverse"]
    assert [part.strip() for part in chosen] == ["on", "“ on”"]
    for width in (17, 24, 60):
        texts(cursor, width)
    assert "Nothing is known" in texts(Cursor([]))  # of a reply from elsewhere
    assert (quoted("a\tb", 20), quoted("x" * 9, 6), percent(None), percent(1.0)) == ("“a⇥b”", "“xxx…”", "", "100.0%")


def test_walking() -> None:
    cursor = Cursor([of_step(one) for one in STEPS[:2]])
    cursor.grow([of_step(one) for one in STEPS])
    assert cursor.place == 2  # it follows
    seen = []
    for _ in range(6):
        seen.append(cursor.token.text if cursor.token else "")
        cursor.step(-1)
    assert seen == ["\n", " on", " sat", " cat", "The", "The"]
    cursor.grow([of_step(one) for one in (*STEPS, *STEPS)])
    assert cursor.place == 0  # it does not
    cursor.jump(1)
    assert (cursor.place, cursor.index) == (1, 0) and cursor.around(2, 5) == ("he", " cat", " sat ")
    cursor.jump(9)
    assert cursor.place == 5
    cursor.start()
    cursor.jump(-1)
    assert cursor.place == 0
    empty = of_step(STEPS[0])
    empty.tokens = []
    gap = Cursor([of_step(STEPS[0]), empty, of_step(STEPS[2])])
    gap.step(-1)
    assert gap.place == 0  # over a pass that brought nothing


def test_what_the_store_knows() -> None:
    kept = Answer(
        marks="P3A8C3P1", thought_marks="P4", ids=[0] * 6, kinds="P2A2C1P1",
        passes=[Pass(0.1, "none", 0, 0, 1, 4, 0, 0, 5, 0), Pass(0.2, "none", 0, 0, 1, 0, 3, 0, 5, 0),
                Pass(0.3, "suffix", 4, 2, 3, 0, 11, 1, 9, 0), Pass(0.4, "none", 0, 0, 1, 0, 1, 0, 5, 0)],
    )  # fmt: skip
    node = Node(id="n", role="assistant", text="The cat sat on\n", thinking="hmm.", answer=kept)
    passages = of_node(node)
    assert [[(one.text, one.kind, one.count) for one in passage.tokens] for passage in passages] == [
        [("hmm.", "P", 1)],
        [("The", "P", 1)],
        [(" cat sat", "A", 2), (" on", "C", 1)],
        [("\n", "P", 1)],
    ]
    assert passages[0].prompt and passages[0].tokens[0].thinking and not passages[1].prompt
    cursor = Cursor(passages)
    cursor.jump(-1)
    told = texts(cursor)
    assert "✓ 1-2 “ cat sat”" in told and "accepted, 2 tokens" in told and "was not kept" in told
    assert of_node(Node(id="n", role="assistant", text="x")) == []


def test_memory_is_bounded() -> None:
    memory, replies = Memory(most=300), [Reply() for _ in range(3)]
    for reply in replies:
        for seq in range(129):
            memory.take(reply, detailed(seq, ("x", "P")))
    assert [len(memory.of(reply)) for reply in replies] == [0, 129, 129]
    one = Reply()
    for seq in range(2000):
        memory.take(one, detailed(seq, ("x", "P")))
    assert len(memory.of(one)) <= 400 and memory.of(one)[-1].t == 199.9
    assert memory.of(replies[2]) == []
    assert memory.whole(one) is False and Memory().whole(one) is False
    fresh = Memory()
    fresh.take(one, detailed(0, ("x", "P")))
    assert fresh.whole(one)
    kept, heard = [Passage(n, "", 0, 0, [], 0, 0, 0) for n in range(5)], memory.of(one)[:2]
    assert [one.t for one in joined(kept, heard)][:3] == [0, 1, 2] and joined(kept, heard)[3:] == heard
    assert joined([], heard) == heard


def kept(week: float, drafter: str, tokens: int, outrider: str = "", **changes: Any) -> Kept:
    """A reply of ten passes in some week."""
    told: dict[str, Any] = {
        **{
            "model": "m",
            "drafter": "auto",
            "rule": "match",
            "seed": 1,
            "text": "",
            "token_ids": [],
            "prompt_tokens": 5,
        },
        **{"finish": "length", "passes": 10, "proposed": 40, "accepted": 30, "kinds": "", "tokens_per_second": 15.0},
        **{"timing": Timing(decode_s=2.0), "drafters": {drafter: 9, "none": 1}, "speedup": Speedup(2.0, 0.1, 9)},
    }
    return Kept((week + 0.5) * WEEK, outrider, tokens, Report(**{**told, **changes}))


def test_history_adds_up() -> None:
    rows = past([
        kept(100, "suffix", 31, "0.1"), kept(103, "suffix", 41, "0.2"), kept(100, "suffix", 21, "0.1"),
        kept(101, "none", 11, speedup=None, proposed=0, accepted=0), kept(90, "eagle", 51, model="old"),
        kept(90, "eagle", 901, model="old", loops=True),
    ])  # fmt: skip
    assert [(row.model, row.drafter, row.whole.replies) for row in rows] == [
        ("m", "suffix", 3), ("m", "none", 1), ("old", "eagle", 2)]  # fmt: skip
    best = rows[0]
    assert (best.whole.tokens_per_pass, best.whole.accepted_share, best.whole.times) == (3.0, 0.75, 2.0)
    assert best.trend() == [2.5, 0.0, 0.0, 4.0]
    assert {name: total.tokens_per_pass for name, total in best.versions.items()} == {"0.1": 2.5, "0.2": 4.0}
    assert rows[2].whole.tokens_per_pass == 5.0
    assert rows[1].whole.times is None and rows[1].whole.accepted_share is None
    told = "\n".join(line.text for line in table(rows, {"suffix": "rides: 3.0 tokens a pass"}, "m", 80))
    for words in ("suffix                 3   3.00       75%     2.00", "by version: 0.1 2.50, 0.2 4.00", "no drafting",
                  "What auto makes of them on m now", sparkline(best.trend()).strip()):  # fmt: skip
        assert words in told, (words, told)
    assert "No reply has been kept" in table([], {}, "m", 80)[0].text


def told(text: str, kinds: str) -> list[dict[str, Any]]:
    """An answer with the details that the inspector asks for."""
    lines = answer(text, kinds)
    for line in lines[:-1]:
        tokens = line["frame"]["tokens"]
        line["frame"] |= {
            "rejected": [[9, " dog", 1, 0, 0.03]],
            "top": [[[7, 0.8], [8, 0.1]] for _ in tokens],
            "top_text": [[token["text"], " bird"] for token in tokens],
        }
    return lines


async def test_inspecting_and_history_on_the_screen(ride: Any) -> None:
    plain = [step(0, 0.0, [("The", "P")]), step(1, 0.1, [(" cat", "A"), (" sat", "C")]), end()]
    async with ride(plain, told("One two three four five six", "PAC"), size=(120, 36), private=False) as chat:
        await chat.pilot.press("f8")
        assert "no reply" in chat.status and not chat.session.details
        await chat.ask("first")
        await chat.pilot.press("f8")
        await chat.until(lambda: chat.app.focused is not None and chat.app.focused.id == "inspector")
        assert "pass 1 of 1" in chat.screen() and "correction" in chat.screen() and "was not kept" in chat.screen()
        await chat.pilot.press("left")
        await chat.until(lambda: "accepted" in chat.screen() and "✓ 1" in chat.screen())
        await chat.pilot.press("end")
        assert chat.session.details == {"inspector"}
        chat.chat.prompt.focus()
        await chat.ask("second")
        await chat.until(lambda: "“ bird”" in chat.screen() and "80.0%" in chat.screen() and "“ dog”" in chat.screen())
        await chat.pilot.press("escape")
        await chat.until(lambda: not chat.chat.query("#inspector") and not chat.session.details)
        await chat.pilot.resize_terminal(80, 24)
        await chat.type("/inspect")
        await chat.until(lambda: chat.app.screen is not chat.chat and "“ bird”" in chat.screen())
        await chat.pilot.press("up", "f8")
        await chat.until(lambda: chat.app.screen is chat.chat and chat.chat.inspection.view is None)
        await chat.type("/history")
        await chat.until(lambda: "no drafting" in chat.screen() or "prompt_lookup  " in chat.screen())
        assert "starter" in chat.screen() and "by week" in chat.screen()
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.app.screen is chat.chat)
        found = await chat.session.keeper.ask(lambda store: store.finished())
        assert [one.tokens for one in found] == [3, 6] and {one.outrider for one in found} == {"scripted"}


def test_versions_of_replies_are_old_settings_too() -> None:
    assert Settings().outrider == ""
