"""Noise filters designed in the frequency domain."""
