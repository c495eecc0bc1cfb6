"""Numerical methods that several solvers use."""
