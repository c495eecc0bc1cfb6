"""Kernels of single participation, compiled."""
