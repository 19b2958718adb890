"""What the model thought, dim above its answer: open while it thinks, one line after that."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.events import Click
from textual.message import Message
from textual.widgets import Static

from outrider.app.chat.flow import Flow
from outrider.app.chat.palette import Palette
from outrider.app.chat.talk import Thought, figures
from outrider.app.render import duration


class FoldLine(Static):
    """The line over a thought; a click folds or unfolds it."""

    class Pressed(Message):
        """It was clicked."""

    def __init__(self) -> None:
        super().__init__("", markup=False, classes="fold")

    def on_click(self, event: Click) -> None:
        """Tell the reply."""
        event.stop()
        self.post_message(self.Pressed())


class ThoughtView(Flow):
    """A thought under its line. It folds by itself when the answer begins, unless the user has said otherwise."""

    def __init__(self, thought: Thought, palette: Palette) -> None:
        super().__init__(thought, palette, classes="thought")
        self.thought = thought
        self.chosen: bool | None = None  # what the user wants of `folded`
        self.folded = False
        self._headline = FoldLine()
        self._over = False
        self._words = ""

    def compose(self) -> ComposeResult:
        """The line, then what was thought."""
        yield self._headline
        yield from super().compose()

    async def think(self, *, answering: bool, ended: bool) -> None:
        """Bring it up to date; `answering`: the answer has begun, `ended`: nothing more will come of either."""
        over = answering or ended
        await self.follow(ended=ended or (over and not self._over))
        self._over = over
        await self.fold(answering if self.chosen is None else self.chosen)

    async def fold(self, folded: bool) -> None:
        """Show the line alone, or all of it."""
        if folded != self.folded:
            self.folded = folded
            await (self.put_away() if folded else self.bring_back())
            self.set_class(folded, "-folded")
        told = f"thought for {figures(self.thought)}" if self._over else f"thinking… {duration(self.thought.seconds)}"
        words = f"{'▸' if folded else '▾'} {told}"
        if words != self._words:
            self._words = words
            self._headline.update(words)
