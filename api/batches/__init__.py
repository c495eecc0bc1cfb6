"""Batches: many specs through worker processes that stay."""
