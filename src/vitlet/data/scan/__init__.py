"""What is in a dataset, and what is wrong with it."""
