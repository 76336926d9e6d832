"""Grids of runs: recipes, studies, hyper-parameter search, plans."""
