"""Analysis of trained models: explanations, probes, reports."""
