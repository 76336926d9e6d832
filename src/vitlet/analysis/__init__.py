"""What a model has learned: explanations, probes, reports."""
