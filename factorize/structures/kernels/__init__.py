"""Compiled recurrences of the structures, one file per structure."""
