"""The training job's side: fetch factor files, stream rows, generate noise. It imports numpy and safetensors alone."""

from factorize.client.cache import FactorCache
from factorize.client.download import fetch
from factorize.client.events import Event
from factorize.client.factors import Factors, load
from factorize.client.noise import ArrayRows, NoiseGenerator, even_shard
from factorize.client.rows import FileRows, RowStream
from factorize.client.service import Service

__all__ = [
    "ArrayRows",
    "Event",
    "FactorCache",
    "Factors",
    "FileRows",
    "NoiseGenerator",
    "RowStream",
    "Service",
    "even_shard",
    "fetch",
    "load",
]
