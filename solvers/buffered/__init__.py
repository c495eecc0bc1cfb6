"""Streaming strategies: few buffers, one epoch or several."""
