"""Losses, enclosed: from whole matrices, and beyond them."""
