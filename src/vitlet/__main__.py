"""``python -m vitlet``."""

import sys

from vitlet.cli import main
from vitlet.processes import end_with_launcher

if __name__ == "__main__":
    end_with_launcher()
    sys.exit(main())
