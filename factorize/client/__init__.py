"""The training job's side: fetch factor files, stream rows, generate noise. Standard library, numpy and safetensors."""

from factorize.client.download import fetch
from factorize.client.events import Event
from factorize.client.factors import Factors
from factorize.client.noise import ArrayRows, NoiseGenerator
from factorize.client.rows import RowStream
from factorize.client.service import Service

__all__ = ["ArrayRows", "Event", "Factors", "NoiseGenerator", "RowStream", "Service", "fetch"]
