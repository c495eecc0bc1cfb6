"""Adaptive optimizers on noisy gradients, in torch."""
