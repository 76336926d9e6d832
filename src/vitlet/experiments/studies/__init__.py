"""Grids of runs: defined in one file, restartable, each cell in its own process, with statistics over seeds."""
