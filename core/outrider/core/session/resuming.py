"""An answer that is gone on with: what of it the model is shown, as exactly as it is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.core.base.errors import UsageError
from outrider.core.base.protocol import Message
from outrider.core.text.template import ChatTemplate
from outrider.core.text.thinking import Encoder, Format, Splitter

from .emit import Emitter, Pieces


@dataclass(frozen=True, slots=True)
class Begun:
    """Where the model goes on: after the text `prompt`, which a splitter follows from there, and the tokens `ids`."""

    prompt: str
    ids: list[int]


@dataclass(frozen=True, slots=True)
class Resuming:
    """How answers of one model are gone on with. `pieces` makes a new detokeniser, `vocab` is the number of token ids."""

    template: ChatTemplate
    tokenizer: Encoder
    pieces: Callable[[], Pieces]
    form: Format | None
    vocab: int

    def begin(self, prompt: str, messages: Sequence[Message], ids: Sequence[int], switches: dict[str, Any]) -> Begun:
        """Behind the last message, the assistant's; `prompt` is the text that it answers.

        Where `ids` are its tokens they stand as they are, so that K/V are reused. Else its text is rendered by the template, or
        its thought begun again, where that is all there is. Raises UsageError.
        """
        last = messages[-1]
        if ids and max(ids) < self.vocab and self._agree(prompt, ids, last):
            return Begun(prompt, list(ids))
        if last.content:
            return Begun(self.template.render(messages, continue_final_message=True, **switches), [])
        return Begun(prompt, self._thought(prompt, last.thinking))

    def _agree(self, prompt: str, ids: Sequence[int], said: Message) -> bool:
        """Whether `ids` are the text and the thought of `said`, with or without what was still held at their end."""
        emitter = Emitter(self.pieces(), (), splitter=self._splitter(prompt))
        emitter.recall(ids)
        stood = emitter.recalled
        whole = emitter.texts()
        parts = (said.content, said.thinking)
        return parts == whole or parts == (whole[0][: stood[0]], whole[1][: stood[1]])

    def _splitter(self, prompt: str) -> Splitter | None:
        return Splitter(self.form, prompt) if self.form is not None else None

    def _thought(self, prompt: str, thought: str) -> list[int]:
        opening = (
            next((marker.text for marker in self.form.markers if marker.to == "thinking"), "") if self.form else ""
        )
        inside = self.form is not None and (self.form.begins(prompt) or ("",))[0] == "thinking"
        if not thought or not (opening or inside):
            raise UsageError(
                "This reply has no text that the model could go on with.", "Have it answer anew: /regen in the chat."
            )
        return self.tokenizer.encode(self.template.behind("" if inside else f"{opening}\n", thought))
