"""Comparisons as both doors run them."""
