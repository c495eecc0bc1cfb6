"""Proofs in doubles: whole matrices by products of matrices, every rounding covered by a bound stated in advance."""
