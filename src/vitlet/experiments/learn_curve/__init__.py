"""Is the number of images enough? Runs on nested subsets, a fitted curve, and what it says about more images."""
