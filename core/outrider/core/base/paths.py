"""Every folder Outrider uses, in one place. `OUTRIDER_HOME` moves all of them at once.

Nothing is created here: whoever writes a file makes its folder first.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

_APP = "outrider"


def _folder(kind: str) -> Path:
    home = os.environ.get("OUTRIDER_HOME")
    if home:
        return Path(home).expanduser().absolute() / kind
    return Path(getattr(platformdirs, f"user_{kind}_dir")(_APP, appauthor=False))


def config_dir() -> Path:
    """Settings that a person edits."""
    return _folder("config")


def data_dir() -> Path:
    """Chats, installed-plugin record, models: what must survive a clean-up."""
    return _folder("data")


def cache_dir() -> Path:
    """What can be made again."""
    return _folder("cache")


def state_dir() -> Path:
    """Logs, calibration and acceptance history of the engine."""
    return _folder("state")


def _moved(variable: str, otherwise: Path) -> Path:
    moved = os.environ.get(variable)
    return Path(moved).expanduser().absolute() if moved else otherwise


def build_dir() -> Path:
    """What was compiled for this machine. `OUTRIDER_BUILDS` moves it alone."""
    return _moved("OUTRIDER_BUILDS", cache_dir() / "builds")


def models_dir() -> Path:
    """The local library: one file or folder for each pulled model. `OUTRIDER_MODELS` moves it alone."""
    return _moved("OUTRIDER_MODELS", data_dir() / "models")


def drafters_dir() -> Path:
    """Drafters that were trained here, a folder for each."""
    return data_dir() / "drafters"


def engine_log() -> Path:
    """Everything the engine process printed to stderr."""
    return state_dir() / "engine.log"
