"""What is copied."""

from __future__ import annotations

from outrider.app.chat.actions.action import Action
from outrider.app.chat.input import offers

ACTIONS: tuple[Action, ...] = (
    Action(
        "copy",
        "Copy the message",
        "Copy the focused message, else the last reply, as the exact Markdown; or `chat`, or `code` with its number",
        lambda screen, words: screen.copying.by_words(words),
        keys=("ctrl+y",),
        slash="copy",
        candidates=lambda screen: offers.words("chat", "code"),
        argument="chat or code number",
        on_message=("c",),
        letter_word="copy",
        leader="y",
    ),
    Action(
        "copy_code",
        "Copy a code block",
        "Copy a code block of the focused message, else of the last reply; several are chosen by number",
        lambda screen, _: screen.copying.code(""),
        slash="copy-code",
        on_message=("x",),
        letter_word="copy code",
        leader="K",
    ),
    Action(
        "copy_chat",
        "Copy the whole chat",
        "Copy everything that was said in this chat as Markdown",
        lambda screen, _: screen.copying.chat(),
        slash="copy-chat",
        leader="C",
    ),
)
