"""Draws of bins: keys and what they draw, sizes of independent bins, and random allocation."""
