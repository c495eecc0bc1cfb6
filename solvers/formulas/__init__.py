"""Strategies that are a formula."""
