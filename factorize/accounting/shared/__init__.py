"""Shared part: the noise that all bins share, integrated in closed form."""
