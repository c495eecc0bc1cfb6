"""The HTTP door: one file per group of routes, and what they share."""
