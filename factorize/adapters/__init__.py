"""Correlated noise inside other frameworks, one module each: `torch`, `opacus`, `private` and `jax`.

Nothing here imports a framework before its module is asked for: `from factorize.adapters.torch import NoiseGenerator`.
"""
