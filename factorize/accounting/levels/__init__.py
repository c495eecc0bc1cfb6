"""Levels: what a noise that is given is worth, in epsilon and delta."""
