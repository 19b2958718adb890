"""`python -m outrider` is the console script."""

import sys

from outrider.app.cli import main

if __name__ == "__main__":
    sys.exit(main())
