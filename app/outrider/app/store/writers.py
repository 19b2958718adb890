"""Which programs work on the store right now: each holds a lock on a small file, which the system frees when it dies."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from outrider.app import files
from outrider.app.store.ids import new_id

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


def take(descriptor: int) -> bool:
    """Lock a file. False if another program holds it."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def writers_of(path: Path) -> Path:
    """The folder that says who has the store at `path` open."""
    return path.with_name(f"{path.stem}.writers")


class Writers:
    """The folder of those files; `me` is this program's name in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.me = new_id()
        files.make_folder(folder)
        ready = folder / self.me
        # Whoever looks before it is locked must not take it for dead.
        unready = ready if sys.platform == "win32" else folder / f".{self.me}"
        self._held = os.open(unready, os.O_RDWR | os.O_CREAT, files.FILE)
        take(self._held)
        if unready != ready:
            unready.rename(ready)

    def hold(self, chat: str) -> None:
        """This program has a chat open, and no other any more."""
        data = b" " + chat.encode()  # the first byte is what some systems lock
        os.ftruncate(self._held, len(data))
        os.lseek(self._held, 0, os.SEEK_SET)
        os.write(self._held, data)

    def claim(self, chat: str) -> bool:
        """Have a chat open from now on. False if another program that runs has it open; then this one has none."""
        if self.holds(chat):
            return False
        self.hold(chat)
        taken = any(name < self.me and chat == other for name, other in self.held().items())  # at the same moment
        if taken:
            self.hold("")
        return not taken

    def holds(self, chat: str) -> bool:
        """Whether another program that runs has this chat open."""
        return chat in self.held().values()

    def held(self) -> dict[str, str]:
        """The chats that other programs which run have open, by the names of the programs."""
        found = {}
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                chat = path.read_bytes()[1:].decode(errors="replace")
                if chat and path.name != self.me and self.alive(path.name):
                    found[path.name] = chat
        return found

    def alive(self, name: str) -> bool:
        """Whether the program called `name`, a file's name, still runs."""
        path = self._folder / name
        if name == self.me:
            return True
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            dead = take(descriptor)
            if dead:
                path.unlink(missing_ok=True)
            return not dead
        finally:
            os.close(descriptor)

    def others(self) -> bool:
        """Whether another program that runs has the store open."""
        return any(path.name != self.me and self.alive(path.name) for path in self._folder.iterdir())

    def clear(self) -> None:
        """Remove the files of those that died."""
        for path in self._folder.iterdir():
            if path.name != self.me:
                self.alive(path.name)

    def leave(self) -> None:
        """This program is done."""
        with contextlib.suppress(OSError):
            (self._folder / self.me).unlink()
        os.close(self._held)


class Unshared(Writers):
    """For a store in memory, of which no other program knows."""

    def __init__(self) -> None:
        self.me = new_id()

    def hold(self, chat: str) -> None:
        """Nobody else could open it."""

    def held(self) -> dict[str, str]:
        """None."""
        return {}

    def alive(self, name: str) -> bool:
        """Only this program is."""
        return name == self.me

    def clear(self) -> None:
        """There is nothing to remove."""

    def leave(self) -> None:
        """There is nothing to leave."""
