"""Training: the job, the loop, and everything that they write into a run folder."""
