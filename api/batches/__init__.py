"""Batches: many specs through worker processes that stay, and published in groups."""
