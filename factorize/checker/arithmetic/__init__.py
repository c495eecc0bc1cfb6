"""Enclosures: balls and series of them, doubles with bounds of their error, and assumptions about the machine."""
