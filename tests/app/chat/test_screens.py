"""Models, drafters, the log, the first start and error cards, as a person meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from chat_support import Ride, answer, loading
from screens_data import DRAFTERS, MIDDLE, ODD, ROWS, STARTER, TESTED, loads, moving, refused, told
from textual.events import Paste
from textual.widgets import Input, OptionList, Static

from outrider.app.chat import first
from outrider.app.chat.card import Card
from outrider.app.chat.confirm import ConfirmScreen
from outrider.app.chat.drafters_screen import DraftersScreen
from outrider.app.chat.log_screen import LogScreen
from outrider.app.chat.models.pulls import Way
from outrider.app.chat.models.screen import ModelsScreen
from outrider.app.chat.session import State
from outrider.app.chat.welcome_screen import WelcomeScreen

HERE = msgspec.structs.replace(MIDDLE, path="/models/middle", source="library")


def pulling(seconds: float) -> list[dict[str, Any]]:
    """A download that takes so long, after one that is far at once."""
    return [moving("pull", 2e9, 8e9, 0.0), told("pull", HERE, seconds)]


async def lead(chat: Ride, letter: str, kind: type) -> None:
    """Press the leader and a letter, and wait for a screen."""
    await chat.pilot.press("ctrl+o", letter)
    await chat.until(lambda: isinstance(chat.app.screen, kind))


async def back(chat: Ride) -> None:
    """Wait until only the chat is there."""
    await chat.until(lambda: chat.app.screen is chat.chat)


async def test_models_are_looked_through_brought_and_deleted(ride: Any) -> None:
    lines = [told("models", ROWS), told("drafters", DRAFTERS), *pulling(60.0), told("remove", ROWS[5])]
    async with ride(answer("x\n"), lines, size=(130, 46)) as chat:
        await lead(chat, "m", ModelsScreen)
        await chat.until(lambda: "middle-4b" in chat.screen())
        await chat.until(lambda: "✓ prompt_lookup" in chat.screen())  # of the model in use, which is highlighted
        assert "fits, 5.0 GB" in chat.screen() and "✗ layerskip" in chat.screen()
        await chat.pilot.press("tab")
        await chat.until(lambda: "sorted by name" in chat.screen())
        await chat.pilot.press(*"middle")
        await chat.until(lambda: "small-2b" not in chat.screen() and "↓ dflash" in chat.screen())
        assert "11.0 GB" in chat.screen()  # with its drafter
        await chat.pilot.press("ctrl+g")
        await chat.until(lambda: "2.0 GB of 8.0 GB" in chat.screen() and "coming 25%" in chat.screen())
        await chat.pilot.press("ctrl+g", "ctrl+g")
        await chat.until(
            lambda: "lab/Middle-DFlash  waiting" in chat.screen() and "nothing else to pull" in chat.screen()
        )
        assert chat.chat.models.pulls.stop("lab/Middle-DFlash")
        await chat.pilot.press("delete")
        await chat.until(lambda: "ctrl+x stops that" in chat.screen())
        await chat.pilot.press("ctrl+x")
        await chat.until(lambda: "stopped; what has come is kept" in chat.screen())
        words = chat.app.screen.query_one(Input)
        words.value = "odd"
        await chat.pilot.press("enter")
        await chat.until(lambda: "not supported yet" in chat.screen())
        assert isinstance(chat.app.screen, ModelsScreen) and ODD.name in chat.screen()
        words.value = "broken"
        await chat.pilot.press("ctrl+d")
        await chat.until(lambda: isinstance(chat.app.screen, ConfirmScreen))
        assert "Delete broken? That is 9 B at /models/broken." in chat.screen()
        await chat.pilot.press("enter")
        await chat.until(lambda: "are free again" in chat.screen())
        await chat.pilot.press("escape")
        await back(chat)


async def test_models_that_are_known_to_be_stale_are_not_shown(ride: Any) -> None:
    """The first start asks what there is before the starter has come."""
    lines = [told("models", [STARTER], 0.2), told("models", ROWS, 0.2), told("drafters", DRAFTERS)]
    async with ride(answer("x\n"), lines, size=(130, 46)) as chat:
        chat.chat.models.rows = [msgspec.structs.replace(STARTER, path=None, source=""), MIDDLE]
        await lead(chat, "m", ModelsScreen)
        await chat.until(lambda: "Looking for models …" in chat.screen())
        assert "to be pulled" not in chat.screen() and "none is" not in chat.screen()
        await chat.until(lambda: "Looking for models that are not here" in chat.screen())  # what is, comes first
        shown = chat.app.screen.query_one(OptionList)
        assert shown.highlighted == 0 and "in use" in chat.screen() and "middle-4b" not in chat.screen()
        await chat.until(lambda: "middle-4b" in chat.screen() and "to be pulled" in chat.screen())
        place = shown.highlighted
        assert place is not None and "starter" in str(shown.get_option_at_index(place).prompt)
        assert "in use" in str(shown.get_option_at_index(place).prompt)
        await chat.pilot.press("escape")
        await back(chat)


async def test_another_model_takes_over_and_one_that_fails_does_not(ride: Any) -> None:
    failed = refused("load", "huge-70b does not fit into the memory of cpu.", "Try --quantize int4.")
    load = [*loading(), loads("Middle 4B", nbytes=9_000_000_000), failed, loads("Middle 4B")]
    lines = [told("model", MIDDLE), *pulling(0.02), told("model", msgspec.structs.replace(HERE, name="huge-70b"))]
    lines += [refused("model", "There is no model 'nope'.", "Near: middle-4b."), told("model", ODD)]
    async with ride(answer("One.\n"), lines, load=load, size=(110, 30)) as chat:
        await chat.ask("first")
        chat.session.choose_drafter("suffix")
        await chat.type("/model middle-4b")
        await chat.until(lambda: any("goes on with Middle 4B" in note for note in chat.notes))
        assert any("is on its way" in note for note in chat.notes)
        assert chat.session.options.model.model == "middle-4b" and chat.session.drafter.name == "suffix"
        await chat.until(lambda: "Middle 4B" in chat.lines()[0])
        assert "One." in chat.screen() and len(chat.session.chat.turns) == 1
        await chat.type("/model huge-70b")
        await chat.until(lambda: chat.cards)
        assert "huge-70b could not be loaded" in chat.cards[0] and "--quantize int4" in chat.cards[0]
        assert "goes on with middle-4b" in chat.cards[0]
        await chat.ready()
        assert chat.session.options.model.model == "middle-4b" and chat.session.state is State.READY
        await chat.ask("second")
        assert chat.session.chat.turns[-1].reply.begun
        await chat.type("/model nope")
        await chat.until(lambda: len(chat.cards) == 2)
        assert "no model 'nope'" in chat.cards[1] and "Near" in chat.cards[1]
        await chat.type("/model odd-1b")
        await chat.until(lambda: len(chat.cards) == 3)
        assert "not supported yet" in chat.cards[2]
        await chat.pilot.press("ctrl+o", "M")
        await chat.until(lambda: chat.chat.prompt.text == "/model ")


async def test_quitting_asks_only_while_a_download_runs(ride: Any) -> None:
    async with ride(answer("x\n"), pulling(60.0)) as chat:
        chat.chat.models.pulls.add("middle-4b", 8_000_000_000)
        await chat.until(lambda: "↓ middle-4b 25%" in chat.status)
        await chat.pilot.press("ctrl+q")
        await chat.until(lambda: isinstance(chat.app.screen, ConfirmScreen))
        assert "A download runs: middle-4b (25%)" in chat.screen() and not chat.app._exit
        await chat.pilot.press("escape")
        await back(chat)
        await chat.pilot.press("ctrl+q")
        await chat.until(lambda: isinstance(chat.app.screen, ConfirmScreen))
        await chat.pilot.press("ctrl+q")
        await chat.pilot.pause()
        assert chat.app._exit


@pytest.mark.parametrize("restart", [False, True], ids=["it died", "it was restarted"])
async def test_a_download_goes_on_with_the_next_engine(ride: Any, restart: bool) -> None:
    async with ride(answer("x\n"), pulling(60.0)) as chat:
        pull = chat.chat.models.pulls.add("middle-4b", 8_000_000_000)
        await chat.until(lambda: "↓ middle-4b 25%" in chat.status)
        if restart:
            await chat.type("/restart")
        else:
            chat.session.client.kill()
        await chat.until(lambda: any("The download of middle-4b was interrupted." in note for note in chat.notes))
        await chat.ready()
        await chat.until(lambda: "↓ middle-4b 25%" in chat.status)
        assert pull.way is Way.RUNNING
        await chat.ask("meanwhile")
        chat.session.client.kill()
        await chat.until(lambda: any("middle-4b could not be brought" in card for card in chat.cards))
        assert pull.way is Way.FAILED
        chat.chat.models.pulls.add("middle-4b")
        await chat.until(lambda: "↓ middle-4b 25%" in chat.status)


async def test_nothing_is_started_again_while_the_chat_is_closed(ride: Any) -> None:
    async with ride(answer("x\n"), pulling(60.0)) as chat:
        pull = chat.chat.models.pulls.add("middle-4b", 8_000_000_000)
        await chat.until(lambda: "↓ middle-4b 25%" in chat.status)
        await chat.session.close()
        await chat.until(lambda: pull.way is Way.FAILED)
        assert not chat.session.client.alive and not any("was interrupted" in note for note in chat.notes)


async def test_drafters_are_switched_and_tested(ride: Any) -> None:
    step = {"type": "Progress", "request": 0, "phase": "bench", "done": 3, "total": 8, "unit": "answers"}
    slow = [{"on": "drafter_test", "at": 0.0, "frame": step}, told("drafter_test", TESTED, 60.0)]
    lines = [told("drafters", DRAFTERS), *slow, told("drafter_test", TESTED), *pulling(0.01)]
    async with ride(answer("x\n"), lines, size=(130, 40)) as chat:
        await chat.type("/drafters")
        await chat.until(lambda: isinstance(chat.app.screen, DraftersScreen) and "lab/Tiny-DFlash" in chat.screen())
        assert "1.7x plain" in chat.screen() and "in use" in chat.screen()
        await chat.pilot.press("t")
        await chat.until(lambda: "A test needs one drafter" in chat.screen())
        await chat.pilot.press("j", "j", "j", "t")
        await chat.until(lambda: "3 of 8 answers" in chat.screen())
        await chat.pilot.press("escape")
        await chat.until(lambda: "was stopped" in chat.screen())
        await chat.pilot.press("t")
        await chat.until(lambda: "4 of 4 answers" in chat.screen())
        await chat.pilot.press("j", "j", "enter")
        await chat.until(lambda: "dflash cannot be used" in chat.screen())
        await chat.pilot.press("end")
        await chat.until(lambda: "ImportError: no boom" in chat.screen() and "outrider-boom 0.3" in chat.screen())
        await chat.pilot.press(*"kkkkkkk", "enter")
        await back(chat)
        assert chat.session.drafter.name == "suffix"
        await lead(chat, "W", DraftersScreen)
        await chat.until(lambda: "lab/Tiny-DFlash" in chat.screen())
        await chat.pilot.press("down", "down", "down", "enter")
        await back(chat)
        await chat.until(lambda: chat.session.drafter.weights == "lab/Tiny-DFlash")


async def test_log_is_read_copied_and_saved(ride: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    profile = tmp_path / "profile.json"
    async with ride(answer("x\n"), profile_ui=str(profile)) as chat:
        await chat.ask("go")
        chat.session.client._words.extend(f"line {n}" for n in range(60))
        await chat.pilot.press("f12")
        await chat.until(lambda: isinstance(chat.app.screen, LogScreen) and "line 59" in chat.screen())
        assert "Step" in chat.screen() and "backlog" in chat.screen() and "a paint costs" in chat.screen()
        await chat.pilot.press("g")
        await chat.until(lambda: "line 0" in chat.screen() and "line 59" not in chat.screen())
        await chat.pilot.press("c")
        await chat.until(lambda: "Copied." in chat.screen())
        await chat.pilot.press("s")
        await chat.until(lambda: "Wrote" in chat.screen())
        assert "line 59" in (tmp_path / "outrider-log.txt").read_text() and "line 59" in chat.app.clipboard
        await chat.pilot.press("f12")
        await back(chat)
        assert chat.app._profile is not None
        chat.app._profile.write(str(profile))
    data = json.loads(profile.read_text())
    assert data["paints"] == len(data["ticks"]) > 0 and data["cost_ms"]["max"] >= data["cost_ms"]["p50"] > 0


async def test_first_start_offers_models(ride: Any) -> None:
    lines = [told("models", [*ROWS, STARTER]), *pulling(0.02), *pulling(0.0)]
    load = [*loading(), loads("Middle 4B", model="middle-4b")]
    async with ride(answer("x\n"), lines, load=load, size=(100, 40), ready=False, welcome=True) as chat:
        await chat.until(lambda: isinstance(chat.app.screen, WelcomeScreen) and "middle-4b" in chat.screen())
        assert "starter" in chat.screen() and "ollama:tiny:1b" in chat.screen() and "16.0 GB free" in chat.screen()
        assert "dflash drafter +2.0 GB" in chat.screen()
        options = chat.app.screen.query_one(OptionList)
        await chat.pilot.press("end", "enter")
        await back(chat)
        assert not first.is_first() and options.option_count == 4
        await chat.until(lambda: chat.session.drafter.weights == "lab/Middle-DFlash")
        await chat.until(lambda: "Middle 4B" in chat.lines()[0])
        assert chat.session.options.model.model == "middle-4b"


async def test_first_start_with_the_starter(ride: Any) -> None:
    async with ride(answer("Hello.\n"), size=(60, 20), ready=False, welcome=True) as chat:
        await chat.until(lambda: isinstance(chat.app.screen, WelcomeScreen))
        await chat.pilot.press("escape")
        await back(chat)
        await chat.ready()
        await chat.ask("hi")
        assert "Hello." in chat.screen() and not first.is_first() and not chat.notes


@pytest.mark.parametrize("pasted", [False, True])
async def test_what_is_typed_at_the_first_start_is_a_message(ride: Any, pasted: bool) -> None:
    async with ride(answer("Hello.\n"), size=(60, 20), ready=False, welcome=True) as chat:
        await chat.until(lambda: isinstance(chat.app.screen, WelcomeScreen))
        await chat.pilot.press("space")
        assert isinstance(chat.app.screen, WelcomeScreen)
        if pasted:
            chat.app.screen.post_message(Paste("quick one\nin two lines"))
        else:
            await chat.pilot.press(*"quick", "space", *"one")
        await back(chat)
        assert chat.chat.prompt.text == ("quick one\nin two lines" if pasted else "quick one")
        await chat.ready()
        await chat.pilot.press("enter")
        await chat.until(lambda: "Hello." in chat.screen())
        assert chat.session.chat.turns[0].text.startswith("quick one")


async def test_error_cards_can_be_worked_with(ride: Any) -> None:
    frame = {"type": "Failed", "request": 0, "message": "It broke.", "hint": "Mend it.", "trace": "Trace of it"}
    broken = [{"on": "generate", "at": 0.0, "frame": frame}]
    async with ride(broken, answer("Fine.\n"), size=(100, 30)) as chat:
        await chat.pilot.press("ctrl+o", "A")
        await chat.until(lambda: "there is no error" in chat.status)
        await chat.type("one")
        await chat.until(lambda: chat.cards)
        assert "It broke." in chat.cards[0] and "Mend it." in chat.cards[0] and "r start" not in chat.cards[0]
        chat.chat.prompt.put("")
        await chat.pilot.press("alt+up")
        await chat.until(lambda: isinstance(chat.chat.focused, Card))
        await chat.pilot.press("d")  # no message has the focus, so none is deleted
        assert chat.chat.prompt.text == "d" and len(chat.session.chat.turns) == 1
        chat.chat.prompt.put("")
        await chat.pilot.press("alt+up")
        await chat.pilot.press("c")
        await chat.until(lambda: "details of the error" in chat.status)
        assert "Trace of it" in chat.app.clipboard and "model starter" in chat.app.clipboard
        await chat.pilot.press("l")
        await chat.until(lambda: isinstance(chat.app.screen, LogScreen))
        assert chat.app.screen.query_one(".lines", Static)
        await chat.pilot.press("escape")
        await back(chat)
        for _ in range(4):  # the engine dies until the chat gives up
            await chat.until(lambda: chat.session.state is State.READY)
            chat.session.client.kill()
        await chat.until(lambda: chat.session.state is State.DIED)
        card = chat.chat.query(Card).last()
        await chat.until(lambda: "r start the engine again" in chat.cards[-1])
        card.focus()
        await chat.pilot.press("r")
        await chat.until(lambda: chat.session.state is State.READY)
        await chat.type("/restart")
        await chat.until(lambda: "Starting the engine again" in chat.status)
        await chat.until(lambda: chat.session.state is State.READY)
