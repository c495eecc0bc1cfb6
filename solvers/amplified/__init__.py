"""Strategies that are optimal for batches drawn as balls in bins: the same families, another sensitivity."""
