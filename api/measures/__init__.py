"""Measures: numbers that a service keeps of its own work, for whoever watches it."""
