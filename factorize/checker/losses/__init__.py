"""Enclosures of losses, from whole matrices and for sizes beyond them."""
