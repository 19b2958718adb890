"""What is done with one message: the focused one, else the last reply."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outrider.app.chat.reply import ReplyView
    from outrider.app.chat.screen import ChatScreen


class Messages:
    """Moves between messages and works on the one that has the focus."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen

    def go(self, by: int) -> None:
        """Focus the message `by` places further, of whatever kind; behind the last one comes the prompt."""
        found = [widget for widget in self._screen.transcript.children if widget.focusable]
        at = found.index(self._screen.focused) if self._screen.focused in found else len(found)
        if 0 <= at + by < len(found):
            found[at + by].focus()
        elif at + by >= len(found):
            self._screen.prompt.focus()

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
