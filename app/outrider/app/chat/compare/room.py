"""What the chat screen does about comparing: set up a race, run it on the chat's engine, show it, and `/verify`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from outrider.app import files

if TYPE_CHECKING:
    from outrider.app.chat.compare.lineup import Lineup, Prompt
    from outrider.app.chat.compare.race import Race
    from outrider.app.chat.input.candidate import Candidate
    from outrider.app.chat.palette import Palette
    from outrider.app.chat.screen import ChatScreen
    from outrider.app.chat.talk import Reply, Turn
    from outrider.app.client import EngineError


def engine_free(screen: ChatScreen) -> str:
    """Why the engine cannot be used for something else now, in a few words; empty if it can."""
    from outrider.app.chat.session import State

    session = screen.session
    if session.loaded is None or session.state is not State.READY:
        return f"the engine is {session.state.value}" if session.current is None else "a reply runs"
    return "a message waits" if session.queue else ""


def verifiable(screen: ChatScreen) -> str:
    """Why no reply can be verified now; empty if one can."""
    from outrider.app.chat.compare.verifying import refusal

    return engine_free(screen) or refusal(_turn(screen), screen.session.settings())


def _turn(screen: ChatScreen) -> Turn | None:
    """The turn of the message that has the focus, else the last one with a finished reply."""
    from outrider.app.chat.compare.verifying import last_turn

    chat = screen.session.chat
    reply, asked = getattr(screen.focused, "reply", None), getattr(screen.focused, "turn", None)
    mine = (turn for turn in chat.turns if turn is asked or (reply is not None and turn.reply is reply))
    return next(mine, None) or last_turn(chat)


def saved_races(screen: ChatScreen) -> Sequence[Candidate]:
    """What `/compare` can open."""
    from outrider.app.chat.compare import keeping
    from outrider.app.chat.input.candidate import Candidate

    return [Candidate(path.stem) for path in keeping.saved()]


class Comparing:
    """Opens the screens of compare mode."""

    def __init__(self, screen: ChatScreen, palette: Palette) -> None:
        self._screen, self._palette = screen, palette

    # ------------------------------------------------------------------------------------------------ races

    def show(self, words: str) -> None:
        """Set up a race, or open a saved one."""
        from outrider.app.chat.compare import keeping

        if words:
            self._open(words)
            return
        from outrider.app.chat.compare.setup import SetupScreen

        self._screen.app.push_screen(SetupScreen(self._lineup(), keeping.saved()), self._chosen)

    def _lineup(self) -> Lineup:
        from outrider.app.chat.compare.lineup import Lineup

        session = self._screen.session
        assert session.loaded is not None
        return Lineup(session.loaded.drafters, session.drafter, self._prompts(), session.sampling.max_tokens)

    def _prompts(self) -> list[Prompt]:
        """What stands in the prompt, the last message with what came before it, and the bundled ones."""
        import copy

        from outrider.app.chat.actions import parse_slash
        from outrider.app.chat.compare.lineup import Prompt, bundled
        from outrider.app.chat.compare.verifying import messages_before
        from outrider.app.chat.talk import Turn

        chat = self._screen.session.chat
        found = []
        typed = Turn(self._screen.prompt.text.strip(), attachments=self._screen.prompt.attachments)
        if typed.said and parse_slash(typed.text) is None:
            shown = copy.copy(chat)
            shown.turns = [*chat.turns, typed]
            found.append(Prompt("prompt", tuple(messages_before(shown, typed))))
        last = next((turn for turn in reversed(chat.turns) if turn.said and not turn.failed), None)
        if last is not None:
            found.append(Prompt("last message", tuple(messages_before(chat, last))))
        return [*found, *bundled()]

    def _chosen(self, chosen: Lineup | Path | None) -> None:
        if isinstance(chosen, Path):
            self._open(str(chosen))
        elif chosen is not None:
            self._set_off(chosen)

    def _set_off(self, lineup: Lineup) -> None:
        from outrider.app.chat.compare.runner import Asker, Order, Runner
        from outrider.app.chat.compare.running import RunningScreen

        session = self._screen.session
        assert session.loaded is not None
        prompt = lineup.prompts[lineup.prompt]
        order = Order(
            name=prompt.name,
            messages=list(prompt.messages),
            model=session.options.model,
            sampling=msgspec.structs.replace(session.sampling, max_tokens=lineup.limit),
            rule=session.options.rule,
            think=session.think,
            seed=session.sampling.seed,
        )
        asker = Asker(session.client)
        runner = Runner(asker, order, session.loaded)
        running = RunningScreen(f"Comparing on {prompt.name}", asker, lambda: runner.run(lineup.arms))
        self._screen.app.push_screen(running, self._raced)

    def _raced(self, outcome: Any) -> None:
        from outrider.app.chat.compare import keeping
        from outrider.app.chat.compare.race import Race

        if not isinstance(outcome, Race):
            self._ended("The comparison", outcome)
            return
        self._screen.stage.status_changed()
        if not self._screen.session.options.private:
            try:
                keeping.save(outcome)
            except OSError as error:
                self._screen.stage.tell(f"The race could not be saved: {files.reason(error)} ({error.filename}).")
        self._race(outcome)

    def _ended(self, what: str, error: EngineError | None) -> None:
        """It was stopped, or the engine could not."""
        from outrider.app.client import EngineDied

        if error is None:
            self._screen.stage.flash(f"{what} was stopped")
        elif isinstance(error, EngineDied):  # its end is told by a card of its own
            self._screen.stage.flash(f"{what} ended with the engine")
        else:
            from outrider.app.chat.session import Problem

            self._screen.stage.complain(Problem(f"{what} came to no end", error.message, error.hint))

    def _open(self, words: str) -> None:
        from outrider.app.chat.compare import keeping

        try:
            race = keeping.load(keeping.find(words))
        except (ValueError, OSError) as error:
            self._screen.stage.tell(f"The race could not be opened: {error}")
            return
        self._race(race)

    def _race(self, race: Race) -> None:
        from outrider.app.chat.compare.arena import RaceScreen
        from outrider.app.chat.compare.exporting import export_here, marks_of

        still = self._screen.app.animation_level == "none"
        self._screen.app.push_screen(RaceScreen(race, marks_of(self._palette), export_here, still))

    # ------------------------------------------------------------------------------------------------ verify

    def verify(self) -> None:
        """Write the focused or the last reply once more without drafts."""
        from outrider.app.chat.compare.runner import Asker
        from outrider.app.chat.compare.running import RunningScreen
        from outrider.app.chat.compare.verifying import Verifier, messages_before

        session, turn = self._screen.session, _turn(self._screen)
        assert session.loaded is not None and turn is not None and turn.reply is not None
        asker = Asker(session.client)
        settings = turn.reply.settings or session.settings()
        messages = messages_before(session.chat, turn)
        verifier = Verifier(asker, turn, messages, settings, session.loaded)
        verified = partial(self._verified, turn.reply)
        self._screen.app.push_screen(RunningScreen("Verifying a reply", asker, verifier.run), verified)

    def _verified(self, reply: Reply, outcome: Any) -> None:
        from outrider.app.chat.compare.verifying import Verified

        if isinstance(outcome, Verified):
            self._screen.stage.tell(outcome.words(), reply)
        else:
            self._ended("The check", outcome)
