"""The objective: backbone, weighted tasks and criterion as one module; ways into other training loops."""

from vitlet.objective.objective import Objective, Outcome, Term

__all__ = ["Objective", "Outcome", "Term"]
