"""Plays a race again on the clock that was recorded: where every lane is at a moment. Knows no widgets and no real time."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from outrider.app.chat.compare.race import Lane, Race
from outrider.core.base.protocol import Kind

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a lane is: what it has written, each piece with its kind, and how far it leads the last one in tokens."""

    label: str
    tokens: int
    passes: int  # those of decoding
    rate: float | None  # tokens a second since its first token
    done: bool
    lead: int


class Track:
    """One lane with its passes in order of time."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.times = [step.t for step in lane.steps]
        self.counts = [0]
        for step in lane.steps:
            self.counts.append(self.counts[-1] + len(step.tokens))
        self.end = self.times[-1] if self.times else 0.0

    def passes(self, moment: float) -> int:
        """How many passes are done by then, that of the prompt counted."""
        return bisect_right(self.times, moment)

    def tokens(self, moment: float) -> int:
        """How many tokens are written by then."""
        return self.counts[self.passes(moment)]

    def pieces(self, moment: float) -> list[tuple[str, Kind, bool]]:
        """What is written by then: text, kind, and whether it is thought; neighbours of one kind are joined."""
        joined: list[tuple[str, Kind, bool]] = []
        for step in self.lane.steps[: self.passes(moment)]:
            for token in step.tokens:
                if joined and joined[-1][1:] == (token.kind, token.thinking):
                    joined[-1] = (joined[-1][0] + token.text, token.kind, token.thinking)
                else:
                    joined.append((token.text, token.kind, token.thinking))
        return joined

    def rate(self, moment: float) -> float | None:
        """Tokens a second since the first one; None before the second pass."""
        passes = self.passes(moment)
        if passes < 2:
            return None
        spent = min(moment, self.end) - self.times[0]
        return (self.counts[passes] - self.counts[1]) / spent if spent > 0 else None


class Replay:
    """The clock of a race. Seconds are those since each lane's request was sent."""

    def __init__(self, race: Race) -> None:
        self.race = race
        self.tracks = [Track(lane) for lane in race.run]
        self.length = max((track.end for track in self.tracks), default=0.0)
        self.most = max((track.counts[-1] for track in self.tracks), default=0)
        self.moment = 0.0
        self.speed = 1.0
        self.paused = False

    @property
    def over(self) -> bool:
        """Whether all lanes are done."""
        return self.moment >= self.length

    @property
    def running(self) -> bool:
        """Whether time goes by."""
        return not self.paused and not self.over

    def advance(self, seconds: float) -> None:
        """So much real time has gone by."""
        if self.running:
            self.moment = min(self.length, self.moment + seconds * self.speed)

    def toggle(self) -> None:
        """Pause or go on; at the end it begins again."""
        if self.over:
            self.again()
        else:
            self.paused = not self.paused

    def again(self) -> None:
        """From the beginning."""
        self.moment, self.paused = 0.0, False

    def finish(self) -> None:
        """To the end."""
        self.moment = self.length

    def step(self, by: int) -> None:
        """Pause, and go to the next moment at which some lane has a pass (-1: to the one before)."""
        self.paused = True
        moments = sorted({moment for track in self.tracks for moment in track.times})
        if by > 0:
            place = bisect_right(moments, self.moment)
            self.moment = moments[place] if place < len(moments) else self.length
        else:
            earlier = [moment for moment in moments if moment < self.moment]
            self.moment = earlier[-1] if earlier else 0.0

    def faster(self, by: int) -> None:
        """The next speed, or the one before."""
        place = SPEEDS.index(self.speed) + by
        self.speed = SPEEDS[max(0, min(len(SPEEDS) - 1, place))]

    def places(self) -> list[Place]:
        """Where every lane is now."""
        written = [track.tokens(self.moment) for track in self.tracks]
        return [
            Place(
                track.lane.label,
                count,
                max(0, track.passes(self.moment) - 1),
                track.rate(self.moment),
                self.moment >= track.end,
                count - min(written),
            )
            for track, count in zip(self.tracks, written, strict=True)
        ]

    def leader(self) -> str:
        """Who leads and by how many tokens, at the end who was there first, in words; empty where there is nothing to say."""
        if len(self.tracks) < 2 or not any(place.tokens for place in self.places()):
            return ""
        if self.over:
            first, second = sorted(self.tracks, key=lambda track: track.end)[:2]
            return f"{first.lane.label} is done {second.end - first.end:.1f} s before {second.lane.label}"
        first, second = sorted(self.places(), key=lambda place: -place.tokens)[:2]
        lead = first.tokens - second.tokens
        return f"{first.label} leads by {lead} token{'' if lead == 1 else 's'}" if lead else "level"
