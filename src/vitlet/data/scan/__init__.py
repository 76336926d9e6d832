"""Checks of a dataset: counts, unreadable files, duplicates, leaks."""
