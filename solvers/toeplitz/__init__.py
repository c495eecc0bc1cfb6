"""The best Toeplitz strategy, whole or banded, by FFT gradients."""
