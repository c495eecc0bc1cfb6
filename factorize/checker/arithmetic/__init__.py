"""Enclosures: balls and series of them, doubles near what they stand for, and what is assumed of the machine."""
