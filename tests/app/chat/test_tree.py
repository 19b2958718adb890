"""Chats as trees without a screen: paths, branches, and replies that are gone on with."""

from __future__ import annotations

import msgspec
import pytest
from chat_support import answer

from outrider.app.chat.joined import joined, told_by
from outrider.app.chat.talk import Chat, End, Reply, Turn
from outrider.app.chat.tree import Knot, Tree
from outrider.app.chat.treeview import lines
from outrider.app.scripted import report_of
from outrider.app.store.records import Node, Settings
from outrider.app.store.replies import Growing, reply_of, row_of
from outrider.core.base.protocol import AnyEvent, Generate, ModelChoice, Report, Speedup, Step


def grown(*above: tuple[str, str, str]) -> Tree:
    """A tree of `(name, name above, who)`; the model's are replies without text."""
    tree = Tree()
    for node, over, who in above:
        tree.add(Knot(node, over, node.upper(), made=Reply if who == "m" else None))
    return tree


def named(node: str) -> Reply:
    reply = Reply()
    reply.node = node
    return reply


def forked() -> Chat:
    chat = Chat(
        tree=grown(("q", "", "u"), ("a", "q", "m"), ("b", "q", "m"), ("r", "a", "u"), ("s", "a", "u"), ("c", "s", "m"))
    )
    chat.show("c")
    return chat


def test_siblings_stand_under_the_same_message() -> None:
    tree = forked().tree
    assert tree.siblings("a") == ["a", "b"] and tree.place("b") == (2, 2) and tree.place("q") == (1, 1)
    assert tree.siblings("r") == ["r", "s"] and tree.siblings("nobody") == [] and tree.place("nobody") == (1, 1)
    assert tree.leaf("q") == "b" and tree.leaf("a") == "c" and tree.leaf("r") == "r"
    assert [knot.node for knot in tree.path("c")] == ["q", "a", "s", "c"]


def test_what_is_cut_out_comes_back_where_it_stood() -> None:
    tree = forked().tree
    gone = tree.cut("a")
    assert [knot.node for knot in gone] == ["a", "r", "s", "c"] and tree.siblings("b") == ["b"] and "c" not in tree
    for knot in gone:
        tree.add(knot)
    assert tree.siblings("b") == ["a", "b"] and tree.siblings("s") == ["r", "s"] and tree.leaf("a") == "c"
    assert tree.cut("nobody") == []


def test_a_damaged_tree_ends() -> None:
    tree = grown(("x", "y", "u"), ("y", "x", "u"))
    assert {knot.node for knot in tree.path("x")} == {"x", "y"}


def test_showing_another_branch_keeps_the_turns_that_stay() -> None:
    chat = forked()
    first, second = chat.turns
    assert [(turn.node, turn.reply.node if turn.reply else "") for turn in chat.turns] == [("q", "a"), ("s", "c")]
    assert chat.show("r") == 1 and chat.turns[0] is first and [turn.text for turn in chat.turns] == ["Q", "R"]
    assert chat.turns[0].reply is not None and chat.turns[0].reply is first.reply
    assert chat.show("b") == 0 and chat.last_node() == "b" and chat.turn_of("b") is chat.turns[0]
    assert chat.turn_of("c") is None and chat.turn_of("") is None
    assert chat.show("") == 0 and not chat.turns and chat.last_node() is None
    assert chat.show("c") == 0 and chat.turns[1].reply is second.reply


def test_a_refused_turn_leaves_no_trace_but_what_was_answered_before() -> None:
    chat = forked()
    fresh = Turn("Why?", named("d"), node="t")
    chat.turns.append(fresh)
    chat.plant(fresh)
    assert [knot.node for knot in chat.tree.path("d")][-3:] == ["c", "t", "d"]
    chat.uproot(fresh)
    assert "t" not in chat.tree and "d" not in chat.tree
    chat.show("q")
    again = Turn("Q", named("e"), node="q")
    chat.turns = [again]
    chat.plant(again)
    assert chat.tree.siblings("e") == ["a", "b", "e"]
    chat.uproot(again)
    assert chat.tree.siblings("a") == ["a", "b"] and "q" in chat.tree


def test_the_tree_as_lines() -> None:
    chat = forked()
    assert chat.tree["b"].reply is not None
    found = lines(chat, "c")
    assert [(line.node, line.depth, line.shown) for line in found] == [
        ("q", 0, True),
        ("a", 1, True),
        ("r", 2, False),
        ("s", 2, True),
        ("c", 2, True),
        ("b", 1, False),
    ]
    assert [line.node for line in found if line.here] == ["c"] and found[0].words == "Q" and found[0].who == "You"
    long = Chat(tree=grown(("x", "", "u")))
    long.tree["x"].text = "word \x1b[31m" * 40
    (line,) = lines(long, "")
    assert line.words.endswith("…") and len(line.words) < 60 and "\x1b" not in line.words


# ---------------------------------------------------------------------------------------------------- going on

ASKED = Generate(1, ModelChoice())


def steps(text: str, kinds: str = "PAC") -> list[Step]:
    frames = [line["frame"] for line in answer(text, kinds, pause=0.5)]
    return [msgspec.convert(frame, AnyEvent) for frame in frames if frame["type"] == "Step"]


def halves(first: str, then: str) -> tuple[list[Step], Report, list[Step], Report]:
    one, two = steps(first), steps(then)
    return one, report_of(one, ASKED, "cancelled"), two, report_of(two, ASKED, "stop")


def test_a_reply_goes_on_and_its_figures_tell_of_both_parts() -> None:
    one, cut, two, done = halves("One two three four five", " six seven eight nine")
    reply = Reply()
    for step in one:
        reply.take(step)
    reply.finish("cancelled", cut)
    assert reply.can_go_on and reply.end is End.STOPPED
    reply.go_on()
    assert reply.resuming and reply.end is End.NOT_YET and reply.report is None
    for step in two:
        reply.take(step)
    assert not reply.resuming and reply.finish("stop", done)
    report = reply.report
    assert report is not None and reply.end is End.WHOLE and not reply.can_go_on
    assert report.text == reply.text == "One two three four five six seven eight nine"
    assert report.kinds == cut.kinds + done.kinds and report.token_ids == cut.token_ids + done.token_ids
    assert report.passes == len(one) + len(two) - 1 == sum(report.drafters.values())
    assert (report.proposed, report.accepted) == (cut.proposed + done.proposed, cut.accepted + done.accepted)
    assert report.timing.decode_s == pytest.approx(cut.timing.decode_s + done.timing.decode_s)
    assert reply.parts == [len(one)] and [one.t for one in reply.passes] == sorted(one.t for one in reply.passes)


def test_speed_and_gain_are_weighted_by_time() -> None:
    _, cut, _, done = halves("One two three four five six", " seven eight nine ten")
    cut.timing.decode_s, cut.tokens_per_second, cut.speedup = 1.0, 40.0, Speedup(value=2.0, error=0.2, n=9)
    done.timing.decode_s, done.tokens_per_second, done.speedup = 3.0, 20.0, Speedup(value=1.0, error=0.1, n=12)
    both = joined(cut, done)
    assert both.tokens_per_second == pytest.approx(25.0)
    assert both.speedup is not None
    assert (both.speedup.value, both.speedup.error, both.speedup.n) == pytest.approx(
        (1.25, 0.125, 21)
    )  # each part has plain passes of its own
    done.speedup = None
    assert joined(cut, done).speedup is None
    cut.rule = "typical"
    assert joined(cut, done).rule == "typical"  # lossy text stays lossy


def test_without_a_report_the_passes_tell_of_the_first_part() -> None:
    one, cut, _, done = halves("One two three four five", " six seven eight nine")
    reply = Reply()
    for step in one:
        reply.take(step)
    reply.interrupt()
    made = told_by(reply.passes, reply.parts, reply.ids, reply.kinds, done)
    for name in ("passes", "proposed", "accepted", "drafters", "kinds", "token_ids"):
        assert getattr(made, name) == getattr(cut, name), name
    assert made.timing.first_token_s == cut.timing.first_token_s and made.timing.decode_s > 0


def test_a_reply_that_does_not_go_on_is_as_it_was() -> None:
    one, cut, _, done = halves("One two three", " four")
    reply = Reply()
    for step in one:
        reply.take(step)
    reply.finish("cancelled", cut)
    reply.go_on()
    reply.interrupt()
    assert reply.end is End.STOPPED and reply.report is cut and not reply.parts
    reply.go_on()
    assert reply.finish("cancelled", msgspec.structs.replace(done, text="", token_ids=[], kinds=""))
    assert reply.end is End.STOPPED and reply.report is cut and reply.text == "One two three"


def test_what_was_only_held_is_taken_back_when_it_goes_on() -> None:
    one, cut, two, done = halves("Caf\ufffd", "é is open")
    reply = Reply()
    reply.take(one[0])
    reply.finish("cancelled", cut)
    assert reply.answer.fresh() == "Caf\ufffd"
    reply.go_on()
    two[0].stands = (3, 0)
    for step in two:
        reply.take(step)
    assert reply.finish("stop", done) and reply.text == "Café is open" and len(reply.answer.runs) == len(reply.text)
    assert sum(one.answer for one in reply.passes) == len(reply.text)
    assert reply.answer.fresh() == reply.text  # whoever shows it begins anew


def test_a_reply_that_the_user_began_counts_only_what_the_model_wrote() -> None:
    two = steps("One two three four")
    done = report_of(two, ASKED, "stop")
    reply = Reply()
    reply.begin_with("Zero ")
    reply.go_on()
    for step in two:
        reply.take(step)
    assert reply.finish("stop", done) and reply.report is not None and not reply.parts
    assert reply.report == msgspec.structs.replace(done, text="Zero One two three four")
    assert reply.answer.runs.encode() == "P8A4C6P5" and reply.ids == done.token_ids
    assert reply_of(row_of(Node(id="a", role="assistant", text=""), reply, None)).lead == len("Zero ")


@pytest.mark.parametrize("died", [False, True], ids=["stopped", "died"])
def test_what_is_kept_of_a_reply_goes_on_too(died: bool) -> None:
    """The thread that saves has its own reply, made from the row; both end alike."""
    one, cut, two, done = halves("One two three four five", " six seven eight nine")
    live, saved = Reply(), Growing(Node(id="a", role="assistant", text=""), Settings())
    for step in one:
        live.take(step)
        saved.take(step)
    for reply in (live, saved.reply):
        reply.interrupt() if died else reply.finish("cancelled", cut)
    row = msgspec.msgpack.decode(msgspec.msgpack.encode(saved.row()), type=Node)
    again = Growing(row_of(Node(id="a", role="assistant", text=""), reply_of(row), None), Settings())
    live.go_on()
    for step in two:
        live.take(step)
        again.take(step)
    live.finish("stop", done)
    again.reply.finish("stop", done)
    kept = again.row()
    assert kept.text == live.text and kept.state == "complete"
    back = reply_of(msgspec.msgpack.decode(msgspec.msgpack.encode(kept), type=Node))
    assert back.report == live.report and back.parts == live.parts and back.ids == live.ids
    assert back.answer.runs.encode() == live.answer.runs.encode() and len(back.passes) == len(one) + len(two)


def test_a_thought_alone_is_said_only_when_it_goes_on() -> None:
    chat = Chat()
    reply = Reply()
    reply.thought.add("Hm", "P")
    chat.turns.append(Turn("q", reply))
    assert [message.role for message in chat.messages()] == ["user"]
    last = chat.messages(going_on=True)[-1]
    assert (last.role, last.content, last.thinking) == ("assistant", "", "Hm")
