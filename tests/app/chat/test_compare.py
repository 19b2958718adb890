"""Compare mode and `/verify` on the screen: set up, run on the chat's engine, replayed, exported, stopped."""

from __future__ import annotations

from typing import Any

from chat_support import Ride, answer, end, step

from outrider.app.chat.compare import keeping
from outrider.app.chat.compare.arena import RaceScreen
from outrider.app.chat.compare.running import RunningScreen
from outrider.app.chat.compare.setup import SavedScreen, SetupScreen
from outrider.app.chat.session import State

TEXT = "one two three four five six seven eight\n"
SLOW = [step(0, 0.0, [("word ", "P")]), end() | {"at": 600.0}]  # it waits to be stopped


async def screen(chat: Ride, kind: type) -> Any:
    """Wait for a screen of this kind."""
    await chat.until(lambda: isinstance(chat.app.screen, kind))
    return chat.app.screen


async def back(chat: Ride) -> None:
    """Wait for the chat."""
    await chat.until(lambda: chat.app.screen is chat.chat)


async def test_a_race_is_set_up_run_replayed_and_opened_again(ride: Any) -> None:
    async with ride(answer(TEXT, "PAB")) as chat:
        await chat.ask("hello")
        chat.chat.prompt.put("and now?")
        await chat.pilot.press("f7")
        setup = await screen(chat, SetupScreen)
        assert [prompt.name for prompt in setup.lineup.prompts][:3] == ["prompt", "last message", "code"]
        assert [message.content for message in setup.lineup.prompts[0].messages] == ["hello", TEXT, "and now?"]
        assert [message.content for message in setup.lineup.prompts[1].messages] == ["hello"]
        await chat.pilot.press("space", "enter")
        assert "Pick two or three." in chat.screen()
        await chat.pilot.press("space", "down", "down", "right", "d", "minus", "tab", "down")
        assert "prompt_lookup k1" in chat.screen() and "prompt_lookup k2" in chat.screen()
        assert "(•) last message" in chat.screen() and "Tokens at most: 128" in chat.screen()
        await chat.pilot.press("enter")
        race = await screen(chat, RaceScreen)
        assert [lane.label for lane in race.race.lanes] == ["plain", "auto"] and race.race.prompt == "last message"
        await chat.pilot.press("escape")
        await back(chat)
        assert chat.session.state is State.READY and chat.session.drafter.name == "auto"
        (kept,) = keeping.saved()
        await chat.type(f"/compare {kept.stem}")
        assert (await screen(chat, RaceScreen)).race == keeping.load(kept)
        await chat.pilot.press("q")
        await back(chat)
        await chat.type("/compare nothing")
        assert "no saved race nothing" in chat.notes[-1]
        await chat.pilot.press("f7")
        await screen(chat, SetupScreen)
        await chat.pilot.press("o")
        await screen(chat, SavedScreen)
        await chat.pilot.press("enter")
        await screen(chat, RaceScreen)
        await chat.pilot.press("q")
        await back(chat)


async def test_a_race_and_a_check_can_be_stopped(ride: Any) -> None:
    async with ride(answer(TEXT, "PAB"), SLOW, SLOW, answer(TEXT), answer("Again.\n")) as chat:
        await chat.type("/verify")
        assert chat.chat.status.flashing and "no reply is finished" in chat.status
        await chat.ask("hello")
        for letters in (("ctrl+o", "c"), ("ctrl+o", "V")):
            await chat.pilot.press(*letters)
            if letters[1] == "c":
                await screen(chat, SetupScreen)
                await chat.pilot.press("enter")
            await screen(chat, RunningScreen)
            await chat.until(lambda: chat.app.screen._asker.now.done)  # type: ignore[attr-defined]
            await chat.pilot.press("escape")
            await back(chat)
            assert "was stopped" in chat.status and chat.session.state is State.READY
        assert keeping.saved() == []
        await chat.type("/verify")
        await chat.until(lambda: any("Verified" in note for note in chat.notes))
        await chat.ask("go on")
        assert chat.session.chat.turns[-1].reply.text == "Again.\n"


async def test_a_reply_that_is_not_the_same_is_told(ride: Any) -> None:
    other = answer("one two drei\n")
    for token in other[0]["frame"]["tokens"][2:]:
        token["id"] = 8
    async with ride(answer("one two three\n", "PAB"), other, answer("one two three\n"), SLOW, private=True) as chat:
        await chat.ask("hello")
        await chat.type("/verify")
        await chat.until(lambda: any("Not the same" in note for note in chat.notes))
        assert "From token 3" in chat.notes[-1] and "plain said “ drei" in chat.notes[-1]
        await chat.type("wait")
        await chat.until(lambda: chat.session.state is State.WRITING)
        await chat.pilot.press("f7")
        assert "Compare drafters: a reply runs" in chat.status and chat.app.screen is chat.chat
