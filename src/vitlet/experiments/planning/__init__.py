"""Prediction of memory, time and cost of a run."""
