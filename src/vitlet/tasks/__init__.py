"""The tasks by name; importing this module imports none of them (the command line must stay quick)."""

from __future__ import annotations

TASKS = {
    "drloc": "vitlet.tasks.drloc:DRLoc",
}
"""Name on the command line -> module and class."""
