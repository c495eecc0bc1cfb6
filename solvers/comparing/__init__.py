"""Comparisons of every mechanism that fits a spec."""
