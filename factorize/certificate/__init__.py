"""Certificates: sensitivities, losses and bounds, recomputed by code that no solver uses."""
