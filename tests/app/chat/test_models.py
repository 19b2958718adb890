"""Models without a screen: the list, memory, which drafters go with which, downloads in a queue, the first start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from chat_support import LOADED
from screens_data import BROKEN, DRAFTERS, GB, HUGE, MIDDLE, ODD, OLLAMA, ROWS, STARTER, plan

from outrider.app.chat import first, welcome
from outrider.app.chat.browser import columns
from outrider.app.chat.meter import stored
from outrider.app.chat.models.details import details
from outrider.app.chat.models.pairs import best, pairs, promised
from outrider.app.chat.models.pulls import Pull, Pulls, Way, bar
from outrider.app.chat.models.rows import HEAD, ORDERS, RIGHT, SPARE, Room, cells, listed, next_order, where
from outrider.app.client import EngineDied, EngineError
from outrider.core.base import protocol
from outrider.core.base.protocol import DrafterRow, KnownDrafter, Loaded, ModelRow, Progress

NONE = Room()


# ------------------------------------------------------------------------------------------------ the list


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("", {row.name for row in ROWS}),
        ("MID", {"middle-4b"}),
        ("dflash lab", {"middle-4b"}),
        ("ollama", {"ollama:tiny:1b"}),
        ("library", {"starter", "broken"}),
        ("q4", {"starter", "ollama:tiny:1b"}),
        ("mit small", {"small-2b"}),
        ("not supported", {"odd-1b"}),
        ("nothing has this", set()),
    ],
)
def test_all_words_are_looked_for_everywhere(words: str, names: set[str]) -> None:
    assert {row.name for row in listed(ROWS, words, "name", NONE)} == names


def test_orders() -> None:
    def names(order: str) -> list[str]:
        return [row.name for row in listed(ROWS, "", order, NONE)]

    assert names("here first")[:3] == ["ollama:tiny:1b", "starter", "broken"]
    assert names("here first")[3:] == ["huge-70b", "middle-4b", "small-2b", "odd-1b"]
    assert names("name") == sorted(names("name"))
    assert names("size")[0] == "broken" and names("size")[-1] == "huge-70b"
    assert names("memory")[:2] == ["middle-4b", "small-2b"]
    assert set(names("memory")[-3:]) == {"huge-70b", "odd-1b", "broken"}
    assert set(names("drafters")[:2]) == {"middle-4b", "small-2b"}
    order = "here first"
    for _ in ORDERS:
        order = next_order(order)
    assert order == "here first" and next_order("here first", -1) == list(ORDERS)[-1]


def test_memory_counts_what_the_loaded_model_gives_back() -> None:
    tight = plan(18, free=16)
    assert NONE.verdict(tight) == "no" and Room(2 * GB).verdict(tight) == "fits"
    assert NONE.verdict(plan(16.2, free=16)) == "tight"  # a CPU gives up its working memory
    assert NONE.verdict(plan(16.2, free=16, device="cuda:0")) == "no"
    assert NONE.verdict(plan(9), beside=8 * GB) == "no"
    assert NONE.verdict(plan(9, free=None)) == "" and NONE.words(plan(9, free=None)) == "9.0 GB"
    assert NONE.words(plan(9)) == "fits, 9.0 GB"


def test_cells_tell_where_a_model_is() -> None:
    assert cells(MIDDLE, NONE) == ("middle-4b", "~8.0 GB", "bf16", "to be pulled", "fits, 9.0 GB", "dflash")
    assert cells(ODD, NONE)[3:5] == ("not supported", "")
    assert where(HUGE) == "3.0 GB are here" and where(STARTER) == "library" and where(BROKEN) == "broken"
    coming = Pull("middle-4b", way=Way.RUNNING)
    assert where(MIDDLE, coming) == "coming"
    coming.take(Progress(1, "download", 2, 8, "bytes"), 0.0)
    assert where(MIDDLE, coming) == "coming 25%" and where(MIDDLE, Pull("x")) == "waits to come"
    assert where(MIDDLE, Pull("x", way=Way.FAILED)) == "to be pulled"


def test_columns_give_way() -> None:
    rows = [cells(row, NONE) for row in ROWS]
    for width in (40, 60, 74, 100):
        head, lines = columns(HEAD, rows, width, right=RIGHT, spare=SPARE)
        assert all(len(line) <= width for line in (head, *lines)) and len(lines) == len(rows)
        assert (head.startswith("NAME") and "MEMORY" in head) or width < 60
    assert "FORM" in columns(HEAD, rows, 100, right=RIGHT, spare=SPARE)[0]
    assert columns(("A", "B"), [("a very long name", "1")], 12)[1] == ["a very l…  1"]
    assert "\x1b" not in columns(("A", "B"), [("a\x1b[2J", "1")], 40)[1][0]


# ------------------------------------------------------------------------------------------------ drafters of a model


def test_each_drafter_passes_or_fails_with_a_fix() -> None:
    found = {pair.name: pair for pair in pairs(DRAFTERS, plan(9), NONE)}
    assert found["prompt_lookup"].fits and found["suffix"].fits
    assert found["eagle"].fits and "/drafter eagle" in found["eagle"].fix
    assert "dflash" not in found  # the published ones stand for it
    assert found["dflash: lab/Tiny-DFlash"].pull == "lab/Tiny-DFlash" and not found["dflash: lab/Tiny-DFlash"].fits
    assert found["dflash: lab/Here-DFlash"].fits
    assert "--drafter-weights" in found["medusa"].fix and found["medusa"].reason == "needs heads"
    assert not found["layerskip"].fits and found["layerskip"].fix
    assert "outrider plugins remove outrider-boom" in found["boom"].fix and "0.3" in found["boom"].fix
    order = [(pair.fits, bool(pair.pull)) for pair in pairs(DRAFTERS, plan(9), NONE)]
    assert order == sorted(order, reverse=True)


def test_a_drafter_that_leaves_no_memory_fails() -> None:
    (pair,) = pairs([DrafterRow(name="big", fit="exact", usable=True, nbytes=8 * GB)], plan(9), NONE)
    assert not pair.fits and "17.0 GB with the model, 16.0 GB are there" in pair.reason and "--quantize" in pair.fix
    (known,) = promised(msgspec.structs.replace(MIDDLE, plan=plan(15)), NONE)
    assert not known.fits and "17.0 GB" in known.reason and not known.pull
    assert pairs([DrafterRow(name="big", fit="exact", usable=True, nbytes=8 * GB)], None, NONE)[0].fits


def test_details_count_model_and_drafter_together() -> None:
    def text(row: ModelRow, found: Any, room: Room = NONE) -> str:
        return "".join(part for part, _ in details(row, found, room))

    told = text(MIDDLE, promised(MIDDLE, NONE), Room(GB))
    assert "drafter dflash: lab/Middle-DFlash  2.0 GB" in told and "together" in told and "11.0 GB" in told
    assert "+ 1.0 GB of the loaded model" in told and "it fits on cpu in bf16 at a context of 8,192 tokens" in told
    assert "↓ dflash: lab/Middle-DFlash not here, 2.0 GB, MIT" in told and "→ pull lab/Middle-DFlash" in told
    assert "looking …" in text(STARTER, None) and "/models/starter.gguf" in text(STARTER, None)
    told = text(STARTER, pairs(DRAFTERS, STARTER.plan, NONE))
    assert "✓ prompt_lookup repeats the chat" in told and "✗ boom no: ImportError: no boom" in told
    assert (
        "It is cut off." in text(BROKEN, []) and "not supported yet" in text(ODD, []) and "Memory" not in text(ODD, [])
    )
    big = msgspec.structs.replace(HUGE, plan=plan(142))
    assert big.plan is not None
    big.plan.instead = "--quantize int4 (about 40.0 GB)"
    assert "it does not fit" in text(big, []) and "would fit: --quantize int4" in text(big, [])
    assert best([]) is None


def test_the_stored_format_is_named_and_not_only_what_is_computed_in() -> None:
    def words(quantisation: str, quantize: str = "auto") -> str:
        made = plan(9)
        made.quantize = quantize
        row = msgspec.structs.replace(
            MIDDLE, path="/models/x", quantisation=quantisation, form="", format="", plan=made
        )
        return "".join(part for part, _ in details(row, [], NONE))

    assert "it fits on cpu as Q4_1, computed in bf16, at a context of" in words("Q4_1")
    assert "it fits on cpu as int8, computed in bf16, at" in words("BF16", "int8")
    for plain in ("bf16", "BF16", "F16", ""):
        assert "it fits on cpu in bf16 at a context of" in words(plain)
    loaded = protocol.as_type(LOADED, Loaded)
    assert stored(loaded) == "in fp32"
    packed = msgspec.structs.replace(loaded, bits=4.98, dtype="bf16")
    assert stored(packed) == "with 5.0-bit weights, computed in bf16"


# ------------------------------------------------------------------------------------------------ downloads


class Hub:
    """What answers the downloads of a test."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.takes: dict[str, Callable[[protocol.Event], None]] = {}
        self.answers: dict[str, asyncio.Future[Any]] = {}
        self.ended: list[tuple[str, Way]] = []
        self.changes = 0
        self.goes_on = True
        self.interrupted: list[str] = []
        self.pulls = Pulls(self.ask, self.spawn, self.changed, self.end, self.again)
        self.tasks: set[asyncio.Future[None]] = set()

    def spawn(self, work: Any) -> None:
        self.tasks.add(asyncio.ensure_future(work))

    def changed(self) -> None:
        self.changes += 1

    def end(self, pull: Pull) -> None:
        self.ended.append((pull.name, pull.way))

    def again(self, pull: Pull, error: EngineError) -> bool:
        self.interrupted.append(error.message)
        return self.goes_on

    async def ask(self, request: Any, take: Callable[[protocol.Event], None]) -> Any:
        name = request(1).name
        self.asked.append(name)
        self.takes[name] = take
        self.answers[name] = asyncio.get_running_loop().create_future()
        return await self.answers[name]

    async def here(self, name: str) -> None:
        """A download is done."""
        self.answers[name].set_result(protocol.plain(ModelRow(name=name, path=f"/models/{name}", nbytes=GB)))
        await self.turn()

    async def useless(self, name: str) -> None:
        """A download is done, and what came cannot be run."""
        row = ModelRow(
            name=name, path=f"/models/{name}", nbytes=GB, unsupported="the architecture odd is not supported yet"
        )
        self.answers[name].set_result(protocol.plain(row))
        await self.turn()

    async def turn(self) -> None:
        """Let everything that can go on do so."""
        for _ in range(8):
            await asyncio.sleep(0)


async def test_one_download_after_the_other() -> None:
    hub, then = Hub(), []
    for name in ("a", "b", "c"):
        hub.pulls.add(name, then=lambda row: then.append(row.path))
    hub.pulls.add("b")
    await hub.turn()
    assert hub.asked == ["a"] and [pull.name for pull in hub.pulls.open] == ["a", "b", "c"]
    assert hub.pulls.stop("b") and not hub.pulls.stop("nobody")
    await hub.here("a")
    assert hub.asked == ["a", "c"] and then == ["/models/a"]
    assert hub.pulls.stop("c")
    await hub.turn()
    assert hub.answers["c"].cancelled() and not hub.pulls.open and hub.ended == [("a", Way.HERE)]
    hub.pulls.add("c")  # goes on
    await hub.turn()
    assert hub.asked == ["a", "c", "c"] and [pull.name for pull in hub.pulls.all].count("c") == 1
    hub.answers["c"].set_exception(EngineError("No answer.", "Try again."))
    await hub.turn()
    last = hub.pulls.of("c")
    assert last is not None and last.way is Way.FAILED and last.words == "failed: No answer." and hub.changes > 5
    assert hub.ended[-1] == ("c", Way.FAILED) and not hub.pulls.open


async def test_a_download_goes_on_once_after_the_end_of_the_engine() -> None:
    hub = Hub()
    hub.pulls.add("a")
    hub.pulls.add("b")
    await hub.turn()
    hub.takes["a"](Progress(1, "download", 1e9, 4e9, "bytes"))
    hub.answers["a"].set_exception(EngineDied("It was killed.", "Wait."))
    await hub.turn()
    pull = hub.pulls.of("a")
    assert pull is not None and pull.way is Way.RUNNING and pull.share is None
    assert hub.asked == ["a", "a"] and hub.interrupted == ["It was killed."] and not hub.ended
    hub.answers["a"].set_exception(EngineDied("It was killed again.", "Wait."))
    await hub.turn()
    assert hub.asked == ["a", "a", "b"] and hub.ended == [("a", Way.FAILED)] and len(hub.interrupted) == 1
    hub.goes_on = False  # the chat is being closed
    hub.answers["b"].set_exception(EngineDied("It was ended.", ""))
    await hub.turn()
    assert hub.asked == ["a", "a", "b"] and hub.ended[-1] == ("b", Way.FAILED)


async def test_what_came_and_cannot_be_run_says_so() -> None:
    hub = Hub()
    hub.pulls.add("a")
    await hub.turn()
    await hub.useless("a")
    pull = hub.pulls.of("a")
    assert pull is not None
    assert pull.words == "here, but it cannot be run: the architecture odd is not supported yet"


async def test_the_app_may_end_while_a_download_runs() -> None:
    hub = Hub()
    hub.pulls.add("a")
    await hub.turn()
    for task in hub.tasks:
        task.cancel()
    await hub.turn()
    assert hub.answers["a"].cancelled() and all(task.cancelled() for task in hub.tasks)


def test_words_of_a_download() -> None:
    pull = Pull("a", nbytes=3 * GB)
    assert pull.words == "waiting  3.0 GB"
    pull.way = Way.RUNNING
    assert pull.words == "begins  3.0 GB" and pull.share is None
    pull.take(Progress(1, "download", 1e9, 4e9, "bytes"), 10.0)
    assert pull.words.endswith("1.0 GB of 4.0 GB") and "/s" not in pull.words
    pull.take(Progress(1, "download", 2e9, 4e9, "bytes"), 12.0)
    assert pull.words == f"{bar(0.5)}  2.0 GB of 4.0 GB  500 MB/s  4 s left"
    pull.take(Progress(1, "wait", 0, 0, note="another Outrider is bringing this model"), 13.0)
    assert pull.words == "another Outrider is bringing this model"
    pull.take(Progress(1, "check", 1e9, 4e9, "bytes"), 14.0)
    assert pull.words.startswith("check  ")
    pull.way = Way.STOPPED
    assert "kept" in pull.words
    assert bar(0) == "░" * 16 and bar(2) == "█" * 16


# ------------------------------------------------------------------------------------------------ the first start


def test_three_sizes_are_offered_with_their_drafters() -> None:
    def row(name: str, size: float, **told: Any) -> ModelRow:
        known = [KnownDrafter(method="mtp")]
        base = {"tier": 1, "parameters": int(size * GB / 2), "drafters": known, "plan": plan(size + 1, device="cuda:0")}
        return ModelRow(name=name, nbytes=int(size * GB), **(base | told))

    rows = [row(f"m{size}", size) for size in (1, 2, 3, 5, 8, 12, 30)]
    rows += [row("gated", 12.5, gated=True), row("odd", 12.4, unsupported="no"), row("rare", 12.3, tier=3)]
    found = welcome.offers(rows, NONE, disk=100 * GB)
    assert [offer.row.name for offer in found] == ["m2", "m5", "m12"]
    assert "12.0 GB to pull · mtp drafter in it · memory: fits, 13.0 GB" in found[-1].words(NONE)
    assert [offer.row.name for offer in welcome.offers(rows, NONE, disk=4 * GB)] == ["m1", "m3"]
    assert welcome.offers([], NONE, None) == []
    assert [offer.row.name for offer in welcome.offers(ROWS, NONE, None)] == ["small-2b", "middle-4b"]
    slow = [row("slow", 12, plan=plan(13)), row("quick", 12, plan=plan(13), active=GB)]
    assert [offer.row.name for offer in welcome.offers(slow, NONE, None)] == ["quick"]
    assert welcome.drafter(MIDDLE) == MIDDLE.drafters[0] and welcome.Offer(MIDDLE, MIDDLE.drafters[0]).pulled == 10 * GB


def test_what_was_found_is_told() -> None:
    found = dict(welcome.machine(ROWS, NONE, 50 * GB))
    assert found["memory"] == "16.0 GB free" and found["disk"] == "50.0 GB free for models"
    assert found["device"].startswith("CPU") and found["models"] == "1 on this machine, and the starter"
    assert [row.name for row, _ in welcome.shown_local(ROWS, NONE)] == ["ollama:tiny:1b"]
    assert OLLAMA in welcome.local(ROWS) and STARTER not in welcome.local(ROWS)
    assert dict(welcome.machine([], NONE, None)) == {"models": "none on this machine yet"}
    starter = ModelRow(name="starter", path="/library/starter.gguf")
    assert dict(welcome.machine([starter], NONE, None))["models"] == "the starter is here, no other yet"


@pytest.mark.parametrize("there", ["config/config.toml", "data/chats.db"])
def test_first_is_only_where_nothing_is(there: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    assert first.is_first()
    (tmp_path / there).parent.mkdir(parents=True)
    (tmp_path / there).touch()
    assert not first.is_first()
