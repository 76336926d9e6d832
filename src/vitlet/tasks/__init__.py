"""The tasks by name; importing this module imports none of them (the command line must stay quick)."""

from __future__ import annotations

TASKS = {
    "drloc": "vitlet.tasks.drloc:DRLoc",
    "sprel": "vitlet.tasks.sprel:SpatialRelations",
    "distance": "vitlet.tasks.distance:Distance",
    "angle": "vitlet.tasks.angle:Angle",
    "position": "vitlet.tasks.position:Position",
    "attention-distance": "vitlet.tasks.attention_distance:AttentionDistance",
    "attention-similarity": "vitlet.tasks.attention_similarity:AttentionSimilarity",
    "rotation": "vitlet.tasks.rotation:Rotation",
}
"""Name on the command line -> module and class."""
