"""What can be compared: the arms of a loaded model with their picks and pinned lengths, and the prompts. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

import msgspec

from outrider.app.chat.compare.race import PLAIN, Arm
from outrider.core.base.protocol import BenchPrompt, DrafterChoice, DrafterRow, Message

MOST, LEAST = 3, 2  # arms of a race
PINS: tuple[int | None, ...] = (None, 1, 2, 3, 4, 5, 6, 8, 12, 16)  # draft lengths, the first is the engine's choice
LIMITS = (64, 128, 256, 512, 1024)  # tokens of an answer


@dataclass(frozen=True, slots=True)
class Prompt:
    """One that can be raced on: its name, the messages that are sent."""

    name: str
    messages: tuple[Message, ...]

    @property
    def first_words(self) -> str:
        """The beginning of what is asked, in one line."""
        return " ".join(self.messages[-1].content[:400].split())


@dataclass(frozen=True, slots=True)
class Row:
    """One arm that can be picked."""

    arm: Arm
    about: str = ""
    picked: bool = False


def bundled() -> list[Prompt]:
    """The six that come with Outrider."""
    data = (files("outrider.assets") / "compare_prompts.jsonl").read_bytes()
    read = [msgspec.json.decode(line, type=BenchPrompt) for line in data.splitlines() if line.strip()]
    return [Prompt(one.id, (Message("user", one.turns[0]),)) for one in read]


class Lineup:
    """The choices of one comparison while they are made."""

    def __init__(
        self,
        drafters: Sequence[DrafterRow],
        current: DrafterChoice,
        prompts: Sequence[Prompt],
        limit: int | None = None,
    ) -> None:
        plain = Row(Arm(DrafterChoice(name=PLAIN)), "no drafting", picked=True)
        auto = Row(Arm(_unpinned("auto", current)), "whichever is fastest here")
        usable = [Row(Arm(_unpinned(row.name, current)), row.reason) for row in drafters if row.usable]
        self.rows = [plain, auto, *usable]
        self.prompts = list(prompts)
        self.prompt = 0
        self.limit = limit if limit is not None else 256
        mine = next((at for at, row in enumerate(self.rows) if row.arm.drafter.name == current.name), 0)
        self.toggle(mine or 1)

    @property
    def arms(self) -> list[Arm]:
        """Those that are picked."""
        return [row.arm for row in self.rows if row.picked]

    def toggle(self, place: int) -> None:
        """Pick an arm or not; of too many the last other one gives way."""
        row = self.rows[place]
        self.rows[place] = replace(row, picked=not row.picked)
        picks = [at for at, one in enumerate(self.rows) if one.picked]
        if len(picks) > MOST:
            away = next(at for at in reversed(picks) if at != place)
            self.rows[away] = replace(self.rows[away], picked=False)

    def pin(self, place: int, by: int) -> None:
        """Another draft length for an arm; plain has none."""
        row = self.rows[place]
        if row.arm.plain:
            return
        now = row.arm.drafter.tokens
        at = PINS.index(now) if now in PINS else 0
        drafter = _pinned(row.arm.drafter, PINS[(at + by) % len(PINS)])
        self.rows[place] = replace(row, arm=Arm(drafter))

    def double(self, place: int) -> None:
        """The same drafter once more, to be pinned to another length."""
        row = self.rows[place]
        if not row.arm.plain:
            self.rows.insert(place + 1, replace(row, picked=False))
            self.pin(place + 1, 1)

    def change_limit(self, by: int) -> None:
        """More or fewer tokens."""
        at = min(range(len(LIMITS)), key=lambda place: abs(LIMITS[place] - self.limit))
        self.limit = LIMITS[max(0, min(len(LIMITS) - 1, at + by))]

    def problem(self) -> str:
        """Why it cannot start, empty if it can."""
        arms = self.arms
        if len(arms) < LEAST:
            return "Pick two or three."
        if len({arm.label for arm in arms}) < len(arms):
            return "Two of them are the same; pin one to another length."
        return "" if self.prompts else "There is no prompt."


def _unpinned(name: str, current: DrafterChoice) -> DrafterChoice:
    """A drafter by name, with the weights and settings that it rides with now if it is the current one."""
    return _pinned(current, None) if name == current.name else DrafterChoice(name=name)


def _pinned(choice: DrafterChoice, tokens: int | None) -> DrafterChoice:
    return msgspec.structs.replace(choice, tokens=tokens)
