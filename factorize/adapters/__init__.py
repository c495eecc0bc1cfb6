"""Correlated noise inside other frameworks, one module each: `torch`, `opacus`, `private` and `jax`.

No framework is imported before its module is asked for: `from factorize.adapters.torch import NoiseGenerator`.
"""
