"""Token coordinates, grids, features, views and attention maps: the geometric core that every task reads."""
