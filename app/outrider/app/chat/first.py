"""Whether this is the very first start. Loads next to nothing: it is asked at every start."""

from __future__ import annotations

from outrider.app.config.read import config_file


def is_first() -> bool:
    """Whether nobody has set anything or chatted here; what was greeted once has a store."""
    if config_file().exists():
        return False
    from outrider.app.store.opening import store_path

    return not store_path().exists()
