"""The command line as the console script starts it, with the fake engine in the engine's place."""

import sys
from pathlib import Path

from outrider.app import client
from outrider.app.cli import main

if __name__ == "__main__":
    client.ENGINE = (sys.executable, str(Path(__file__).with_name("fake_engine.py")))
    sys.exit(main())
