"""What `outrider.core.base.paths` uses of platformdirs, for machines without it: folders below the home folder."""

from __future__ import annotations

from pathlib import Path


def _folder(kind: str, app: str) -> str:
    return str(Path.home() / ".local" / app / kind)


def user_config_dir(app: str, appauthor: object = None) -> str:
    """Settings."""
    return _folder("config", app)


def user_data_dir(app: str, appauthor: object = None) -> str:
    """Data."""
    return _folder("data", app)


def user_cache_dir(app: str, appauthor: object = None) -> str:
    """What can be made again."""
    return _folder("cache", app)


def user_state_dir(app: str, appauthor: object = None) -> str:
    """Logs."""
    return _folder("state", app)
