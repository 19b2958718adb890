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
        """Focus the reply `by` places further; behind the last one comes the prompt."""
        replies = list(self._screen.transcript.query(".reply"))
        at = replies.index(self._screen.focused) if self._screen.focused in replies else len(replies)
        if 0 <= at + by < len(replies):
            replies[at + by].focus()
        elif at + by >= len(replies):
            self._screen.prompt.focus()

    def copy(self) -> None:
        """Copy the focused or the last reply."""
        focused = self._screen.focused
        reply = getattr(focused, "reply", None) or self._screen.session.chat.last_reply()
        if reply is None or not reply.text:
            self._screen.stage.flash("There is no reply to copy yet")
            return
        self._screen.app.copy_to_clipboard(reply.text)
        self._screen.stage.flash("Copied the reply, without its thought" if reply.thought.begun else "Copied the reply")

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
