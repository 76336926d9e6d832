"""Images and labels: sources, splits, transforms and loading."""
