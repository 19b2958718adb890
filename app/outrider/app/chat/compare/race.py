"""A race as data: several drafters on one prompt, run one after the other, every pass with its time. Saved as JSON as it is."""

from __future__ import annotations

import msgspec

from outrider.app.chat.compare.parting import Parting
from outrider.app.chat.meter import stored
from outrider.core.base.protocol import DrafterChoice, Report, Sampling, Step

FORMAT = 1
PLAIN = "none"


class Arm(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who drafts in one lane."""

    drafter: DrafterChoice

    @property
    def plain(self) -> bool:
        """Whether nobody drafts."""
        return self.drafter.name == PLAIN

    @property
    def label(self) -> str:
        """`plain`, `auto`, `suffix`, or `suffix k4` where the length of drafts is pinned."""
        if self.plain:
            return "plain"
        pin = self.drafter.tokens
        return self.drafter.name if pin is None else f"{self.drafter.name} k{pin}"


class Lane(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one arm did. `turn`: when it ran, from 0. `problem`: why it did not run to its end, empty if it did;
    `notes`: what the engine said meanwhile."""

    arm: Arm
    turn: int = 0
    steps: list[Step] = []
    report: Report | None = None
    problem: str = ""
    notes: list[str] = []

    @property
    def label(self) -> str:
        """The name of its arm."""
        return self.arm.label


class Race(msgspec.Struct, kw_only=True, omit_defaults=True):
    """All lanes, and what they ran on. `partings`: where texts leave that of the first lane, at most one for each other lane."""

    format: int = FORMAT
    created: float  # seconds since 1970
    prompt: str  # its name
    asked: str  # its last message
    model: str
    title: str
    device: str
    dtype: str
    bits: float = 0.0  # of memory for each weight; 0: not told
    threads: int
    exact: bool = False
    rule: str = "match"
    sampling: Sampling
    seed: int
    lanes: list[Lane]
    partings: list[Parting] = []

    @property
    def run(self) -> list[Lane]:
        """The lanes that came to their end."""
        return [lane for lane in self.lanes if lane.report is not None]

    @property
    def plain(self) -> Lane | None:
        """The lane in which nobody drafts."""
        return next((lane for lane in self.run if lane.arm.plain), None)

    @property
    def reference(self) -> Lane | None:
        """The lane that the texts of the others are held against: the plain one, else the first."""
        return self.plain or next(iter(self.run), None)

    def head(self) -> str:
        """What ran on what, in one line."""
        threads = f", {self.threads} thread{'' if self.threads == 1 else 's'}" if self.device == "cpu" else ""
        exact = " · exact" if self.exact else ""
        model = f"{self.title or self.model} {stored(self)}"
        return f"{self.prompt} · {model} · {self.device}{threads}{exact} · seed {self.seed}"


def decoded(race_json: bytes) -> Race:
    """A saved race. Raises ValueError with a sentence if it is none, or of a newer Outrider."""
    try:
        race = msgspec.json.decode(race_json, type=Race)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"It is not a saved race: {error}.") from error
    if race.format > FORMAT:
        raise ValueError("It was saved by a newer Outrider.")
    if not race.run or not all(lane.steps for lane in race.run):
        raise ValueError("No lane of it came to its end.")
    return race
