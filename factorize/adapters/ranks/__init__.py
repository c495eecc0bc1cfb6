"""Ranks: noise in torch jobs of several processes, each of which draws and keeps the noise of its own shards."""
