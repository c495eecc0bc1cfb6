"""Floating-point numbers that err on a known side: rounding, pairs of doubles, series."""
