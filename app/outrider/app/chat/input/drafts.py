"""Unsent text, one small file for each chat, so that neither a crash nor a quit loses it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from outrider.app import files
from outrider.app.store.records import Attachment
from outrider.app.store.writers import Writers
from outrider.core.base import paths

_NEW = "new-"  # and the name of the program, for a chat that has no name yet


class Draft(msgspec.Struct, omit_defaults=True):
    """What stands in the prompt, and what goes with it."""

    text: str = ""
    attachments: list[Attachment] = []

    def __bool__(self) -> bool:
        return bool(self.text.strip() or self.attachments)


def folder() -> Path:
    """Where drafts lie."""
    return paths.data_dir() / "drafts"


class Drafts:
    """The drafts of one running program. Chats are named as in the store; an empty name is a new chat."""

    def __init__(self) -> None:
        self._folder = folder()
        self._programs = Writers(self._folder / "programs")

    def _file(self, chat: str) -> Path:
        return self._folder / f"{chat or _NEW + self._programs.me}.json"

    def save(self, chat: str, draft: Draft) -> None:
        """Keep a draft; an empty one is forgotten. Raises OSError."""
        file = self._file(chat)
        if not draft:
            file.unlink(missing_ok=True)
            return
        files.write(file, msgspec.json.encode(_whole(draft)))

    def load(self, chat: str) -> Draft:
        """The draft of a chat; for a new one the newest that a program which ended has left. Empty where there is none."""
        file = self._file(chat)
        try:
            if not chat and (left := self._left_behind()):
                os.replace(max(left, key=lambda one: one.stat().st_mtime), file)
            return msgspec.json.decode(file.read_bytes(), type=Draft)
        except (OSError, msgspec.MsgspecError):
            return Draft()

    def _left_behind(self) -> list[Path]:
        files = self._folder.glob(f"{_NEW}*.json")
        return [file for file in files if not self._programs.alive(file.stem.removeprefix(_NEW))]

    def tidy(self, known: set[str]) -> None:
        """Forget drafts of chats that are no more."""
        for file in self._folder.glob("*.json"):
            if not file.stem.startswith(_NEW) and file.stem not in known:
                file.unlink(missing_ok=True)

    def leave(self) -> None:
        """This program is done."""
        self._programs.leave()


def _whole(draft: Draft) -> Draft:
    """Without halves of characters, which no file takes."""
    kept = [msgspec.structs.replace(one, text=_text(one.text), name=_text(one.name)) for one in draft.attachments]
    return Draft(_text(draft.text), kept)


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
