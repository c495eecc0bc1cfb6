"""The client of training jobs: factor files, their rows, and noise. It imports numpy and safetensors alone."""

from factorize.client.cache import FactorCache as FactorCache
from factorize.client.connection import Event as Event
from factorize.client.download import fetch as fetch
from factorize.client.held_factors import HeldFactors as HeldFactors
from factorize.client.held_factors import connect as connect
from factorize.client.held_factors import load as load
from factorize.client.service import Service as Service
from factorize.factors import Factors as Factors
from factorize.factors.rows import Rows as Rows
from factorize.noise.generator import NoiseGenerator as NoiseGenerator
from factorize.noise.generator import even_shard as even_shard
