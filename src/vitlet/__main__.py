"""``python -m vitlet``."""

import sys

from vitlet.cli import main

if __name__ == "__main__":
    sys.exit(main())
