"""The training job's side: factor files, their rows, and noise. It imports numpy and safetensors alone."""

from factorize.client.cache import FactorCache
from factorize.client.connection import Event
from factorize.client.download import fetch
from factorize.client.held_factors import HeldFactors, connect, load
from factorize.client.noise import NoiseGenerator, even_shard
from factorize.client.rows import Rows
from factorize.client.service import Service
from factorize.factors import Factors

__all__ = [
    "Event",
    "FactorCache",
    "Factors",
    "HeldFactors",
    "NoiseGenerator",
    "Rows",
    "Service",
    "connect",
    "even_shard",
    "fetch",
    "load",
]
