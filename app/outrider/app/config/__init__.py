"""Settings of a person: one TOML file, environment variables, personas, presets for models and sections
of single ones.

`Asked` is what a command line asked for; `Asked.settle` lays everything else under it and says of every value where it
comes from. Nothing here raises for what a file holds: what is wrong becomes a `Fault` with its line, and the default holds.
"""

from __future__ import annotations

from outrider.app.config.fields import FIELDS, Fault, Field
from outrider.app.config.settle import Asked, Settings, Source, folders

__all__ = ["FIELDS", "Asked", "Fault", "Field", "Settings", "Source", "folders"]
