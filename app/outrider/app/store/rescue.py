"""What could not be saved goes into a file of its own when the program ends, so that nothing is lost without a word."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from outrider.app import files
from outrider.app.store import exports
from outrider.app.store.chats import Store
from outrider.app.store.ids import new_id
from outrider.app.store.opening import open_spare
from outrider.app.store.problems import StoreError
from outrider.app.store.records import Whole
from outrider.app.store.writing import free_name
from outrider.core.base import paths


def rescue(path: Path, works: Iterable[Callable[[Store], Any]]) -> Path | None:
    """Do `works`, which the store at `path` did not take, to a copy of it; write the chats they wrote in beside it as JSON.

    Returns the file, None if there is not a word to keep. Raises `StoreError` if no folder takes it.
    """
    spare = open_spare(path)
    spare.connection.execute("PRAGMA foreign_keys = OFF")  # of a damaged store not all is there
    with Store(spare) as store:
        known = {row.id for row in store.chats()}
        for work in works:
            with contextlib.suppress(StoreError), store.changing():  # one that fails must not cost the others
                work(store)
        spare.connection.execute("UPDATE node SET state = 'complete' WHERE state = 'waiting'")
        spare.connection.execute("UPDATE node SET parent = NULL WHERE parent NOT IN (SELECT id FROM node)")
        chats = [_whole(store.load(name), renew=name in known) for name in store.written()]
    return _write(path.parent, exports.to_json(chats)) if chats else None


def _whole(whole: Whole, *, renew: bool) -> Whole:
    """A chat that can be imported; one that stands in the store is made another, since an import leaves those as they are."""
    names = {node.id: new_id() if renew else node.id for node in whole.nodes}
    for node in whole.nodes:
        node.id, node.parent = names[node.id], names.get(node.parent or "")
    whole.chat.head = names.get(whole.chat.head or "")
    if renew:
        whole.chat.id = new_id()
    return whole


def _write(beside: Path, text: str) -> Path:
    trouble = ""
    for folder in (beside, paths.state_dir(), *_of_the_session()):
        try:
            files.make_folder(folder)
            file = free_name(folder, "not saved", "json")
            files.write(file, text.encode())
        except OSError as error:
            trouble = trouble or files.reason(error)
        else:
            return file
    raise StoreError(f"What was written last could not be saved anywhere: {trouble}.")


def _of_the_session() -> list[Path]:
    """The folder that the system gives the user alone until the session ends, where there is one; it needs no disk."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    return [folder / "outrider"] if folder.is_absolute() and folder.is_dir() and not files.too_wide(folder) else []
