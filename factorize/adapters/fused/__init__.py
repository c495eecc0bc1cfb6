"""Fused noise: normals drawn and correlated in one pass over the memory of a CUDA device, by Triton."""
