"""What is done with one message: the focused one, else the last reply."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.app.chat.card import Card
from outrider.app.chat.letters import is_message
from outrider.app.chat.session import State
from outrider.app.chat.status import Mode
from outrider.app.chat.transcript import UserMessage

if TYPE_CHECKING:
    from outrider.app.chat.reply import ReplyView
    from outrider.app.chat.screen import ChatScreen

_FIRST = ("copy", "edit", "regenerate", "keep_going", "delete_message", "branch")  # in this order, then all others


class Messages:
    """Moves between messages and works on the one that has the focus."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        screen.stage.heads.append(lambda _: screen.status.show_mode(self.mode()))

    def go(self, by: int) -> None:
        """Focus the message `by` places further, of whatever kind; behind the last one comes the prompt."""
        found = [widget for widget in self._screen.transcript.children if widget.focusable]
        at = found.index(self._screen.focused) if self._screen.focused in found else len(found)
        if 0 <= at + by < len(found):
            found[at + by].focus()
        elif at + by >= len(found):
            self._screen.prompt.focus()

    def mode(self) -> Mode | None:
        """What the last line tells while letters act: on what, and which; None while they are text."""
        screen, focused = self._screen, self._screen.focused
        out = [("esc", "back")]
        if isinstance(focused, Card):
            return focused.HELP_KEYS[0], [*((letter, words) for letter, (_, words) in focused.letters.items()), *out]
        if not is_message(focused):
            return None
        if armed := screen.letters.armed:
            return f"press {armed} again: {screen.branching.would_delete()}", [("esc", "keeps it")]
        if screen.branching.sideways():
            out.insert(0, ("← →", "versions"))
        known = [one for one in screen.keymap.actions if one.on_message and one.letter_word]
        known.sort(key=lambda one: _FIRST.index(one.id) if one.id in _FIRST else len(_FIRST))
        idle = "" if getattr(focused, "thought", None) is not None else "thought"
        keys = [(one.letters[0], one.letter_word) for one in known if one.id != idle and not one.unavailable(screen)]
        return self._place(), [*keys, *out]

    def _place(self) -> str:
        """`message 3 of 4`, counting all of the chat and what waits."""
        session, focused = self._screen.session, self._screen.focused
        said: list[object] = []
        for turn in (*session.chat.turns, *session.queue):
            said += [turn] if turn.said else []
            said += [turn.reply] if turn.reply is not None else []
        one = focused.turn if isinstance(focused, UserMessage) else getattr(focused, "reply", None)
        place = f"message {said.index(one) + 1} of {len(said)}" if one in said else "message"
        return place if session.state is State.READY else f"{session.state.value} · {place}"

    def fold_thought(self) -> None:
        """Fold or unfold the thought of the focused or the last reply that has one."""
        from outrider.app.chat.reply import ReplyView

        views = [view for view in self._screen.transcript.query(ReplyView) if view.thought is not None]
        if not views:
            self._screen.stage.flash("No reply began with a thought")
            return
        view = next((view for view in views if view is self._screen.focused), views[-1])
        self._screen.run_worker(self._fold(view))

    async def _fold(self, view: ReplyView) -> None:
        await view.fold_thought()
        if view.finished and view.thought is not None and not view.thought.folded:
            show = self._screen.transcript.scroll_to_widget
            self._screen.call_after_refresh(show, view.thought, animate=False, top=True, immediate=True)
