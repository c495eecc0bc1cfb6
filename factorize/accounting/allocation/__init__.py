"""Random allocation: each example takes part in k of the steps, chosen uniformly, for C = I."""
