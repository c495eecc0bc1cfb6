"""Correlated noise inside other frameworks, one module for each door; the rooms hold what several doors use.

The doors are `private`, `torch`, `opacus`, `huggingface`, `jax_private`, `jax`, `federated`, `flower` and `nvflare`.
No framework is imported before its module is asked for: `from factorize.adapters.torch import NoiseGenerator`.
"""
