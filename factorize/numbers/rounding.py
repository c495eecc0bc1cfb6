"""The unit that error bounds are stated in."""

UNIT = 2.0**-52
"""Spacing of doubles at 1; twice the unit roundoff, so that first-order error bounds stay valid with their tails."""
