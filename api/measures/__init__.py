"""Measures: the pace of the machine, and what a service keeps of its own work for whoever watches it."""
