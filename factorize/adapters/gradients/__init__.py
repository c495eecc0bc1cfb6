"""Gradients of each example of a torch model, and their clipped sums."""
