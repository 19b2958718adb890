"""Training a drafter beside a chat, as a person meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chat_support import Ride, answer
from screens_data import told
from traces import LOADED

from outrider.app.chat.session import State
from outrider.app.chat.training import Way, words
from outrider.app.chat.training_screen import TrainingScreen
from outrider.core.base.protocol import Train

ROWS = [
    {"name": "eagle", "fit": "exact", "reason": "needs weights made for it", "where": "train", "trains": True},
    {
        "name": "medusa",
        "fit": "exact",
        "where": "trained",
        "trains": True,
        "usable": True,
        "gain": 1.62,
        "weights": "/w",
    },
    {"name": "suffix", "fit": "any", "usable": True},
]
MEASURED = {"texts": 5, "tokens_per_pass": 1.8, "by_depth": [0.5]}
DONE = {"method": "eagle", "drafter": "/run/drafter", "measured": MEASURED, "rival_measured": None}


def load() -> list[dict[str, Any]]:
    """A model for which two methods can be trained."""
    return [told("load", LOADED | {"drafters": ROWS, "nbytes": 3_000_000_000})]


def step(done: int, at: float, **figures: float) -> dict[str, Any]:
    """A step of a training."""
    frame = {"type": "Progress", "request": 0, "phase": "training", "done": done, "total": 40, "unit": "steps"}
    return {"on": "train", "at": at, "frame": frame | {"figures": figures}}


async def opened(chat: Ride) -> None:
    await chat.pilot.press("ctrl+o", "N")
    await chat.until(lambda: isinstance(chat.app.screen, TrainingScreen) and "about 30 min" in chat.screen())


def requests(chat: Ride) -> list[Train]:
    """What the engine for trainings was asked."""
    return [one for one in SENT if isinstance(one, Train)]


SENT: list[Any] = []


@pytest.fixture(autouse=True)
def _sent(monkeypatch: pytest.MonkeyPatch) -> None:
    from inside import InsideClient

    SENT.clear()
    send = InsideClient.send

    def noted(self: InsideClient, request: Any) -> None:
        SENT.append(request)
        send(self, request)

    monkeypatch.setattr(InsideClient, "send", noted)


async def test_a_drafter_is_trained_while_the_chat_goes_on(ride: Any) -> None:
    steps = [
        step(10, 0.0, loss=5.0),
        step(20, 0.0, loss=4.0, tokens_per_pass=1.5),
        told("train", DONE | {"place": "/p"}, 1.5),
    ]
    async with ride(answer("x\n"), steps, load=load(), size=(120, 36)) as chat:
        await opened(chat)
        assert "trained here" in chat.screen() and "1.62" in chat.screen() and "suffix" not in chat.screen()
        assert "3.0 GB" in chat.screen() and "bundled prompts" in chat.screen()
        await chat.pilot.press("right", "right", "c")
        await chat.until(lambda: "about 2 h" in chat.screen() and "your own chats and" in chat.screen())
        await chat.pilot.press("c", "left", "left", "left", "left", "enter")
        await chat.until(lambda: "20 of 40 steps" in chat.screen())
        assert "loss          5.00" in chat.screen() and "tokens/pass   1.50" in chat.screen()
        (asked,) = requests(chat)
        assert (asked.order.method, asked.order.budget_s, asked.resume) == ("eagle", 600.0, False)
        assert asked.model is not None and asked.model.model == "starter" and len(asked.prompts) > 1000
        await chat.pilot.press("enter")
        await chat.until(lambda: "A training of eagle runs" in chat.screen())
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.app.screen is chat.chat and "eagle 50%" in chat.status)
        await chat.ask("meanwhile")
        assert chat.session.state is State.READY
        await chat.until(lambda: chat.chat.training.way is Way.DONE)
        await chat.until(lambda: any("1.80 tokens a pass" in note and "/restart" in note for note in chat.notes))
        assert "eagle 50%" not in chat.status


async def test_it_is_stopped_and_taken_up(ride: Any, tmp_path: Path) -> None:
    folder = tmp_path / "home" / "data" / "training" / "old-run"
    folder.mkdir(parents=True)
    plan = {"order": {"method": "eagle", "folder": str(folder)}, "model": {"model": "m"}, "schedule": {"steps": 40}}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "log.jsonl").write_text('{"step": 1, "loss": 7.5}\n')
    lines = [step(2, 0.0, loss=5.0), told("train", DONE | {"place": ""}, 60.0)]
    async with ride(answer("x\n"), lines, load=load(), size=(120, 36)) as chat:
        await chat.type("/train")
        await chat.until(lambda: "stopped at step 1 of 40" in chat.screen())
        await chat.pilot.press("enter")
        await chat.until(lambda: "2 of 40 steps" in chat.screen() and "loss          7.50" in chat.screen())
        assert requests(chat)[0].resume and requests(chat)[0].order.folder == str(folder)
        assert "stopped at step" not in chat.screen()
        await chat.pilot.press("ctrl+x")
        await chat.until(lambda: chat.chat.training.way is Way.STOPPED)
        await chat.until(lambda: "eagle: stopped" in chat.screen())
        assert "stopped at step 1 of 40" in chat.screen() and not chat.cards
        await chat.pilot.press("ctrl+x")
        await chat.until(lambda: "Nothing runs." in chat.screen())


async def test_a_failure_is_a_card(ride: Any) -> None:
    failed = {"type": "Failed", "request": 0, "message": "8.0 GB of memory are missing.", "hint": "Take less."}
    lines = [{"on": "train", "at": 0.0, "frame": failed}]
    async with ride(answer("x\n"), lines, load=load(), size=(120, 36)) as chat:
        await opened(chat)
        await chat.pilot.press("enter")
        await chat.until(lambda: "8.0 GB of memory are missing. Take less." in chat.screen())
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.cards and "The training of eagle failed" in chat.cards[0])


async def test_quitting_asks_while_one_runs(ride: Any) -> None:
    lines = [step(10, 0.0, loss=5.0), told("train", DONE | {"place": ""}, 60.0)]
    async with ride(answer("x\n"), lines, load=load(), size=(120, 36)) as chat:
        chat.chat.training.begin("eagle", 600.0, chats=False)
        await chat.until(lambda: "eagle 25%" in chat.status)
        await chat.pilot.press("ctrl+q")
        await chat.until(lambda: "A training runs: eagle" in chat.screen())
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.app.screen is chat.chat)
        assert not chat.app._exit


def test_budgets_as_people_say_them() -> None:
    assert [words(seconds) for seconds in (600.0, 3600.0, 5400.0)] == ["10 min", "1 h", "1 h 30 min"]
