"""Adaptive optimizers on noisy gradients."""
