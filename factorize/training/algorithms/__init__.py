"""Algorithms of the published methods, one file per method, on numpy alone."""
