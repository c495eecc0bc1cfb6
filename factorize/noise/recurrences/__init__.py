"""Recurrences that make the noise of a step, one file per structure."""
