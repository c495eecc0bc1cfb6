"""Exact arithmetic: integers, enclosures and power series without rounding."""
