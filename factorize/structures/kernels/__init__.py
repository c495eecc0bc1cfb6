"""Compiled recurrences of the structures, one file per structure. Imported on first use."""
