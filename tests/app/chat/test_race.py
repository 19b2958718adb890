"""Compare mode without a screen: races are run, kept, replayed, judged and drawn by plain classes."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from click import Context
from click.testing import CliRunner
from race_support import LOADED, Engine, arm, drafted, lane, plain, race, refused, steps

from outrider.app.chat.compare import keeping, parting, picture, verdict
from outrider.app.chat.compare.alone import ReplayApp
from outrider.app.chat.compare.arena import RaceScreen
from outrider.app.chat.compare.exporting import export
from outrider.app.chat.compare.lineup import Lineup, Prompt, bundled
from outrider.app.chat.compare.parting import Parting, Said, Seen
from outrider.app.chat.compare.race import Race, decoded
from outrider.app.chat.compare.replay import Replay
from outrider.app.chat.compare.runner import Asker, Order, Runner, Stopped, part
from outrider.app.chat.compare.verifying import Verifier, messages_before, refusal
from outrider.app.chat.talk import Chat, End, Reply, Turn
from outrider.app.client import EngineDied, EngineError
from outrider.app.commands.replay import _complete, replay
from outrider.app.config.schema import Look
from outrider.app.scripted import report_of
from outrider.app.store.records import Settings
from outrider.core.base.protocol import (
    DrafterChoice,
    DrafterRow,
    Generate,
    Message,
    ModelChoice,
    Sampling,
    Speedup,
    Step,
)

TEXT = "one two three four five six seven"
TWO = race(lane("none", plain(TEXT)), lane("suffix", drafted(TEXT), turn=1))


# ------------------------------------------------------------------------------------------------ replay


def test_a_replay_is_where_the_lanes_were_at_that_moment() -> None:
    replay = Replay(TWO)
    assert replay.length == pytest.approx(0.7) and replay.most == 7
    replay.advance(0.25)
    slow, fast = replay.places()
    assert (slow.tokens, fast.tokens, fast.lead, slow.done) == (2, 4, 2, False)
    assert replay.leader() == "suffix leads by 2 tokens"
    assert replay.tracks[1].pieces(replay.moment) == [
        ("one", "P", False),
        ("twothree", "A", False),
        ("four", "B", False),
    ]
    replay.advance(0.1)
    assert [place.tokens for place in replay.places()] == [3, 7] and replay.places()[1].done
    assert replay.places()[1].rate == pytest.approx(6 / 0.2)  # its clock stands still once it is done
    replay.finish()
    assert replay.over and not replay.running and replay.leader() == "suffix is done 0.4 s before plain"


def test_a_replay_goes_slower_faster_by_passes_and_back() -> None:
    replay = Replay(TWO)
    replay.faster(1)
    replay.advance(0.1)
    assert replay.moment == pytest.approx(0.2)
    for _ in range(9):
        replay.faster(1)
    assert replay.speed == 8
    replay.toggle()
    replay.advance(1.0)
    assert replay.moment == pytest.approx(0.2) and replay.paused
    replay.step(1)
    assert replay.moment == pytest.approx(0.3)
    replay.step(-1)
    replay.step(-1)
    replay.step(-1)
    assert replay.moment == 0.0
    replay.step(-1)
    assert replay.moment == 0.0 and [place.tokens for place in replay.places()] == [0, 0]
    replay.finish()
    replay.step(1)
    assert replay.over
    replay.toggle()  # at the end: from the beginning
    assert replay.moment == 0.0 and replay.running


def test_a_saved_race_replays_the_same(tmp_path: Path) -> None:
    path = keeping.save(TWO, tmp_path)
    again = keeping.load(path)
    assert again == TWO and keeping.as_json(again) == path.read_text()
    one, other = Replay(TWO), Replay(again)
    for _ in range(12):
        one.advance(0.07)
        other.advance(0.07)
        assert one.places() == other.places() and one.moment == other.moment


# ------------------------------------------------------------------------------------------------ files


def test_races_are_found_again_newest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    assert keeping.saved() == []
    old, new = keeping.save(TWO), keeping.save(msgspec.structs.replace(TWO, created=TWO.created + 86400))
    assert keeping.saved() == [new, old]
    assert keeping.find(old.name) == keeping.find(old.stem) == keeping.find(str(old)) == old
    with pytest.raises(ValueError, match="no saved race nothing"):
        keeping.find("nothing")


@pytest.mark.parametrize("data", [b"{", b"{}", b'{"format": 1}', b"[]"])
def test_what_is_no_race_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a saved race"):
        decoded(data)


def test_a_race_of_a_newer_outrider_or_without_lanes_is_not_opened() -> None:
    with pytest.raises(ValueError, match="newer"):
        decoded(msgspec.json.encode(msgspec.structs.replace(TWO, format=99)))
    with pytest.raises(ValueError, match="No lane"):
        decoded(msgspec.json.encode(msgspec.structs.replace(TWO, lanes=[])))


def test_exports_open_again_and_parse(tmp_path: Path) -> None:
    odd = msgspec.structs.replace(TWO, prompt="a <b> & | c\x1b[31m")
    data, text, drawing = export(odd, tmp_path)
    assert keeping.load(data) == odd
    root = ElementTree.fromstring(drawing.read_text())
    assert len(root.findall("{*}polyline")) == 2 and "1.00×" not in drawing.read_text()
    assert "suffix" in drawing.read_text() and "\x1b" not in drawing.read_text() + text.read_text()
    lines = text.read_text().splitlines()
    assert "a \\<b> & \\|" in lines[0] and lines[2].count("|") == lines[4].count("|") == 4
    assert len(export(odd, tmp_path)) == 3 and len(list(tmp_path.iterdir())) == 6  # under another name


# ------------------------------------------------------------------------------------------------ verdict


def test_the_verdict_counts_what_the_passes_tell() -> None:
    told = {row[0].strip(): row[1:] for row in verdict.rows(TWO)}
    slow, fast = TWO.lanes
    assert slow.report is not None and fast.report is not None
    assert told["tokens"] == ("7", "7") and told["tok/s"] == ("10.0", "30.0")
    assert told["x plain"] == ("1.00×", "3.00×") and told["accepted"] == ("", "100%")
    assert told["tokens/pass"] == ("1.17", "3.50")  # the end sign counts
    assert told["depth 2"] == ("", "(100%)") and told["ran"] == ("first", "second")
    assert verdict.sentences(TWO) == ["Identical text: plain, suffix (7 tokens)."]
    assert verdict.table(TWO).splitlines()[0].split() == ["plain", "suffix"]


def test_acceptance_by_depth_is_of_the_passes_that_reached_it() -> None:
    passes = [[("a", "P")], [("b", "A"), ("c", "C")], [("d", "A"), ("e", "A"), ("f", "B")], [("g", "C")]]
    assert verdict.depths(steps(passes, 0.1, "suffix")) == [(2 / 3, 3), (0.5, 2)]


def test_without_a_plain_lane_the_measured_speed_up_stands_in() -> None:
    made = race(lane("auto", drafted(TEXT)), lane("suffix", drafted(TEXT)))
    assert "x plain" not in {row[0] for row in verdict.rows(made)}
    report = made.lanes[0].report
    assert report is not None and verdict.speedup(made, made.lanes[0]) is None
    report.speedup = Speedup(value=1.8, error=0.05, n=9)
    assert {row[0]: row[1:] for row in verdict.rows(made)}["x plain"] == ("≈1.80× ±0.05", "")


# ------------------------------------------------------------------------------------------------ partings


def seen(text: str, **chances: float) -> Seen:
    ids = {name: sum(map(ord, name)) for name in (text, *chances)}
    return Seen(ids[text], text, {ids[name]: value for name, value in chances.items()})


def told(exact: bool = False, dtype: str = "fp32", ours: Seen | None = None, theirs: Seen | None = None) -> Parting:
    made = Parting(one="plain", other="suffix", token=3, before="two three", ours=Said("four"), theirs=Said("vier"))
    ours = ours or seen("four", four=0.5, vier=0.4999)
    return parting.judge(made, ours, theirs or seen("vier", four=0.4999, vier=0.5), dtype=dtype, exact=exact)


def test_a_near_tie_is_told_from_a_difference() -> None:
    near = told()
    assert near.verdict == "near-tie" and near.moved == pytest.approx(2 * math.log(0.5 / 0.4999))
    assert "From token 4, behind “…two three”, plain said “four” (ahead by 0.0002)" in near.words()
    assert "rounding decided" in near.words()
    far = told(theirs=seen("vier", four=0.3, vier=0.6))
    assert far.verdict == "difference" and "more than rounding" in far.words() and "outrider verify" in far.words()
    assert told(exact=True).verdict == "difference"  # nothing may differ there
    loose = seen("vier", four=0.48, vier=0.52)
    assert told(theirs=loose).verdict == "difference" and told(theirs=loose, dtype="bf16").verdict == "near-tie"


def test_sampled_text_is_judged_by_what_the_passes_differ_in() -> None:
    """The noise made an unlikely token win in both passes; only what moved between them says anything."""
    made = told(ours=seen("four", four=0.10, vier=0.60), theirs=seen("vier", four=0.09999, vier=0.60001))
    assert made.verdict == "near-tie" and made.ours.ahead is not None and made.ours.ahead < 0
    assert "behind by" in made.words()


def test_what_is_not_known_is_not_judged() -> None:
    assert told(ours=seen("four", four=0.5)).verdict == "unchecked"
    assert "not known" in told(ours=seen("four", four=0.5)).words()
    assert parting.first_difference([1, 2], [1, 2]) is None and parting.first_difference([1, 2], [1, 2, 3]) == 2
    ended = part(lane("none", plain("a b")), lane("suffix", drafted("a b c d")))
    assert (
        ended is not None and ended.token == 2 and "plain ended" in ended.words() and "suffix said “c”" in ended.words()
    )


def detailed(text: str, at: int, other: str) -> list[Step]:
    """Plain passes with the chances of the token at a place and of another one."""
    made = steps(plain(text), 0.1, "none")
    for place, step in enumerate(made):
        rival = sum(map(ord, other))
        step.top = [[(step.tokens[0].id, 0.5), (rival, 0.4999)] if place == at else []]
        step.tokens[0].p = 0.5
    return made


def test_a_token_is_looked_at_again_only_if_its_text_went_the_same_way() -> None:
    made = detailed("one two three", 2, "drei")
    ids = [step.tokens[0].id for step in made]
    found = parting.seen(made, 2, ids)
    assert found is not None and found.text == "three" and len(found.chances) == 2
    assert parting.seen(made, 2, [*ids[:1], 99, ids[2]]) is None and parting.seen(made, 3, [*ids, 4]) is None


# ------------------------------------------------------------------------------------------------ runs


ORDER = Order("code", [Message("user", "Write it.")], ModelChoice(), Sampling(temperature=0.0, max_tokens=16), seed=7)


def answers(request: Generate) -> list[Step]:
    if request.drafter.name == "medusa":
        raise refused("There is no medusa here.")
    if request.detail:
        other = "vier" if request.drafter.name == "none" else "four"
        return detailed("one two three four" if request.drafter.name == "none" else "one two three vier", 3, other)
    text = "one two three vier fünf" if request.drafter.name == "auto" else TEXT
    return steps(plain(text) if request.drafter.name == "none" else drafted(text), 0.1, request.drafter.name)


async def test_arms_run_one_after_the_other_with_one_seed_and_a_warm_up_each() -> None:
    engine = Engine(answers)
    asker = Asker(engine)  # type: ignore[arg-type]
    runner = Runner(asker, ORDER, LOADED, shuffle=lambda turns: turns.reverse())
    made = await runner.run([arm("none"), arm("suffix", 4)])
    assert [lane.label for lane in made.lanes] == ["plain", "suffix k4"] and [lane.turn for lane in made.lanes] == [
        1,
        0,
    ]
    warm, first, _, second = engine.asked
    assert warm.prompt and not warm.messages and warm.drafter.tokens == 4 and warm.sampling.max_tokens == 8
    assert first.messages == second.messages == ORDER.messages and not first.detail and not first.lenient
    assert first.sampling == second.sampling == made.sampling == Sampling(temperature=0.0, seed=7, max_tokens=16)
    assert verdict.sentences(made)[-1] == "suffix k4: It was slow."
    now = asker.now
    assert (now.words, now.reading, now.done, now.of) == ("plain, 2 of 2", "prompt 75%", 7, 16)
    assert made.partings == [] and made.seed == 7 and made.asked == "Write it."


async def test_texts_that_part_are_looked_at_once_more_and_a_refused_arm_stops_nobody() -> None:
    engine = Engine(answers)
    runner = Runner(Asker(engine), ORDER, LOADED, shuffle=lambda turns: None)  # type: ignore[arg-type]
    made = await runner.run([arm("none"), arm("medusa"), arm("auto")])
    assert made.lanes[1].problem == "There is no medusa here. Take another." and [one.label for one in made.run] == [
        "plain",
        "auto",
    ]
    (found,) = made.partings
    assert (found.token, found.ours.text, found.theirs.text, found.verdict) == (3, "four", "vier", "near-tie")
    looks = [request for request in engine.asked if request.detail]
    assert [request.sampling.max_tokens for request in looks] == [4, 4]
    said = verdict.sentences(made)
    assert said[0].startswith("medusa: There is no medusa") and "near-tie" in said[-1]
    typical = msgspec.structs.replace(made, rule="typical")
    assert any("lossy" in one for one in verdict.sentences(typical))


async def test_a_race_can_be_stopped_and_ends_with_the_engine() -> None:
    asker = Asker(engine := Engine(answers))  # type: ignore[arg-type]

    def stopping(request: Generate) -> list[Step]:
        if len(engine.asked) == 2:
            asker.stop()
        return answers(request)

    engine._answer = stopping
    with pytest.raises(Stopped):
        await Runner(asker, ORDER, LOADED).run([arm("none"), arm("suffix")])
    assert engine.cancelled == [engine.asked[1].id] and len(engine.asked) == 2

    def dies(request: Generate) -> list[Step]:
        raise EngineDied("gone")

    with pytest.raises(EngineDied):
        await Runner(Asker(Engine(dies)), ORDER, LOADED).run([arm("none")])  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="No lane"):
        await Runner(Asker(Engine(answers)), ORDER, LOADED).run([arm("medusa")])  # type: ignore[arg-type]


async def test_stopping_while_a_parting_is_looked_at_keeps_the_race() -> None:
    asker = Asker(engine := Engine(answers))  # type: ignore[arg-type]

    def stopping(request: Generate) -> list[Step]:
        if request.detail:
            asker.stop()
        return answers(request)

    engine._answer = stopping
    made = await Runner(asker, ORDER, LOADED).run([arm("none"), arm("auto")])
    assert len(made.run) == 2 and made.partings[0].verdict == "unchecked"


# ------------------------------------------------------------------------------------------------ verify


def turn_of(text: str, finish: str = "stop", **told: object) -> Turn:
    reply = Reply()
    request = Generate(1, ModelChoice(), drafter=DrafterChoice(name="suffix"))
    made = steps(drafted(text), 0.1, "suffix")
    for step in made:
        reply.take(step)
    reply.finish(finish, msgspec.structs.replace(report_of(made, request, finish), seed=5, **told))  # type: ignore[arg-type]
    return Turn("Write it.", reply)


async def verified(turn: Turn, answer: str) -> tuple[str, list[Generate]]:
    def plainly(request: Generate) -> list[Step]:
        if request.drafter.name == "none":
            return detailed(answer, 3, "four")
        return detailed(" ".join(TEXT.split()[:4]), 3, "vier")

    engine = Engine(plainly)
    settings = Settings(sampling=Sampling(temperature=0.3), drafter=DrafterChoice(name="suffix", tokens=2))
    asked = [Message("user", "Write it.")]
    made = await Verifier(Asker(engine), turn, asked, settings, LOADED).run()  # type: ignore[arg-type]
    return made.words(), engine.asked


async def test_a_reply_is_verified_with_its_own_seed_and_settings() -> None:
    words, asked = await verified(turn_of(TEXT), TEXT)
    assert words.startswith("Verified") and "the same 7 tokens, one by one, as with suffix" in words
    (request,) = asked
    assert (
        request.sampling == Sampling(temperature=0.3, seed=5, max_tokens=8) and request.detail
    )  # one more than it has
    assert request.drafter.name == "none"


async def test_a_reply_that_differs_is_told_with_its_near_tie() -> None:
    words, asked = await verified(turn_of(TEXT), "one two three vier")
    assert words.startswith("Not the same") and "plain said “vier”" in words and "suffix said “four”" in words
    assert "near-tie" in words and asked[1].drafter == DrafterChoice(name="suffix", tokens=2)
    assert asked[1].sampling.max_tokens == 4


async def test_a_stopped_reply_is_verified_up_to_where_it_was_stopped() -> None:
    words, asked = await verified(turn_of("one two three", finish="cancelled"), "one two three")
    assert words.startswith("Verified") and asked[0].sampling.max_tokens == 3


def test_what_cannot_be_verified_is_refused_with_the_reason() -> None:
    now = Settings()
    assert refusal(None, now) == refusal(Turn("x", Reply()), now) == "no reply is finished yet"
    assert refusal(turn_of(TEXT), now) == ""
    assert "lossy" in refusal(turn_of(TEXT, rule="typical"), now)
    assert refusal(turn_of(TEXT, model="other"), now) == "this reply was written by other"
    cut = turn_of(TEXT)
    assert cut.reply is not None
    cut.reply.end = End.INTERRUPTED
    assert "interrupted" in refusal(cut, now)


def test_a_reply_is_asked_for_again_with_what_stood_before_it() -> None:
    first, second = turn_of("a b"), turn_of("c d")
    chat = Chat("Be kind.", [first, second])
    assert [message.content for message in messages_before(chat, first)] == ["Be kind.", "Write it."]
    assert [message.role for message in messages_before(chat, second)] == ["system", "user", "assistant", "user"]
    assert second.reply is not None and chat.turns == [first, second]


# ------------------------------------------------------------------------------------------------ line-up


def test_two_or_three_arms_are_picked_pinned_and_doubled() -> None:
    rows = [
        DrafterRow(name="suffix", usable=True, reason="r"),
        DrafterRow(name="medusa"),
        DrafterRow(name="eagle", usable=True),
    ]
    line = Lineup(rows, DrafterChoice(name="suffix", tokens=3), bundled())
    assert [row.arm.label for row in line.rows] == ["plain", "auto", "suffix", "eagle"]
    assert [one.label for one in line.arms] == ["plain", "suffix"] and not line.problem()
    line.toggle(1)
    line.toggle(3)
    assert len(line.arms) == 3 and line.rows[3].picked  # the newest pick stays
    line.toggle(1)
    line.pin(3, 1)
    line.pin(0, 1)
    assert line.rows[3].arm.label == "eagle k1" and line.rows[0].arm.label == "plain"
    line.double(3)
    assert [row.arm.label for row in line.rows[3:]] == ["eagle k1", "eagle k2"]
    line.pin(4, -1)
    line.toggle(4)
    assert "the same" in line.problem()
    for place, row in enumerate(line.rows):
        if row.picked and place:
            line.toggle(place)
    assert line.problem() == "Pick two or three."
    for _ in range(9):
        line.change_limit(1)
    assert line.limit == 1024


def test_six_prompts_are_bundled() -> None:
    prompts = bundled()
    assert [prompt.name for prompt in prompts] == ["code", "chat", "rewrite", "maths", "json", "long context"]
    assert all(isinstance(prompt, Prompt) and prompt.first_words for prompt in prompts)
    assert len(prompts[-1].messages[0].content) > 5000


def test_a_race_with_a_lane_that_failed_still_has_its_table() -> None:
    broken = lane("suffix", drafted(TEXT))
    broken.report, broken.problem = None, "It has no weights."
    made: Race = race(lane("none", plain(TEXT)), broken)
    assert {len(row) for row in verdict.rows(made)} == {3}
    assert verdict.sentences(made) == ["suffix: It has no weights."]
    ElementTree.fromstring(picture.svg(made))


# ------------------------------------------------------------------------------------------------ alone


def test_a_saved_race_is_printed_by_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    name = keeping.save(TWO).stem
    run = CliRunner().invoke
    assert "Identical text: plain, suffix" in run(replay, [name]).output and "3.00×" in run(replay, [name]).output
    assert run(replay, [name, "--format", "md"]).output == verdict.markdown(TWO)
    assert run(replay, [name, "--format", "json"]).output == keeping.as_json(TWO)
    assert run(replay, [name, "--format", "svg"]).output == picture.svg(TWO)
    assert [item.value for item in _complete(Context(replay), replay.params[0], name[:4])] == [name]
    missing = run(replay, ["nothing"])
    assert missing.exit_code == 2 and "no saved race nothing" in missing.output


async def test_a_saved_race_is_shown_without_a_chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    slow = race(lane("none", plain(TEXT), pause=30.0), lane("suffix", drafted(TEXT), pause=30.0))
    app = ReplayApp(slow, Look())

    def shown() -> str:
        return "\n".join(strip.text for strip in app.screen._compositor.render_strips())

    async with app.run_test(size=(80, 30)) as pilot:
        replay = app.screen.replay  # type: ignore[attr-defined]
        await pilot.press("space", "r", "full_stop", "full_stop", "full_stop", "comma", "right")
        assert replay.paused and replay.moment == 60.0 and replay.speed == 2.0
        assert "60.0 of 210.0 s · paused" in shown() and "onetwothreefour" in shown()
        assert "suffix leads by 2 tokens" in shown() and "Identical" not in shown()
        await pilot.press("end")
        await pilot.pause(0)
        assert "Identical text: plain, suffix" in shown() and "tokens/pass" in shown() and "onetwo" in shown()
        for letter in "ye":  # each alone: both at once would be text
            await pilot.press(letter)
            while app.screen.typed.text:  # type: ignore[attr-defined]
                await pilot.pause(0.01)
        assert "Identical" in app.clipboard
        assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".md", ".svg"] and "Wrote" in shown()
        await pilot.resize_terminal(60, 20)
        await pilot.pause(0)
        assert "Identical" in shown() and "onetwo" not in shown()  # no room for both
        await pilot.press("v")
        while app.screen.typed.text:  # type: ignore[attr-defined]
            await pilot.pause(0.01)
        await pilot.pause(0)
        assert "Identical" not in shown() and "onetwo" in shown()
        await pilot.press("q")
        while app.is_running and app.return_code is None:
            await pilot.pause(0.01)
    assert app.return_code == 0


async def test_with_reduced_motion_a_race_begins_at_its_end() -> None:
    app = ReplayApp(TWO, Look(reduced_motion=True))
    async with app.run_test(size=(20, 5)):  # too small for anything, and it stands
        assert isinstance(app.screen, RaceScreen) and app.screen.replay.over and not app.screen._ticking
