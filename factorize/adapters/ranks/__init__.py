"""Ranks: noise in torch jobs of several processes, each of which draws and keeps that of its own shards."""
