"""The user's own editor for the prompt."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from pathlib import Path

from outrider.app import files
from outrider.app.editor import editor
from outrider.core.base import paths

HOW = "Name one, as in `export EDITOR=nano`, and start Outrider again."


class NoEditor(Exception):
    """There is none, or it did not work: one sentence."""


def command() -> list[str]:
    """The words that start it. Raises `NoEditor` if there is none, or what names it makes no sense."""
    try:
        words = editor()
    except ValueError as error:
        raise NoEditor(f"VISUAL or EDITOR cannot be read: {error}. {HOW}") from error
    if not words:
        raise NoEditor(f"No editor is set. {HOW}")
    return words


def edit(text: str, words: list[str]) -> str:
    """Have the text edited; returns what was saved, without its last line end. Raises `NoEditor` if it failed."""
    with _own_folder() as folder:
        file = Path(folder) / "message.md"
        try:
            files.write(file, (text + "\n" if text else "").encode("utf-8", "replace"))
        except OSError as error:
            raise NoEditor(f"The message cannot be handed over: {files.reason(error)}.") from error
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a ctrl+c is the editor's
        try:
            done = subprocess.run([*words, str(file)], check=False)
        except OSError as error:
            raise NoEditor(f"{words[0]} could not be started ({error.strerror}). {HOW}") from error
        finally:
            signal.signal(signal.SIGINT, handler)
        if done.returncode:
            raise NoEditor(f"{words[0]} ended with code {done.returncode}; the prompt is as it was.")
        try:
            return file.read_text("utf-8", "replace").removesuffix("\n")
        except OSError as error:
            raise NoEditor(f"What {words[0]} saved cannot be read; the prompt is as it was.") from error


def _own_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that nobody else can look into. Raises `NoEditor`."""
    try:
        files.make_folder(paths.state_dir())
        return tempfile.TemporaryDirectory(prefix="edit-", dir=paths.state_dir())
    except OSError as error:
        raise NoEditor(f"The message cannot be handed over: {files.reason(error)}.") from error
