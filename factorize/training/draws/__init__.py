"""Draws of bins: keys and what they draw, sizes of independent bins, and bins that every epoch draws anew."""
