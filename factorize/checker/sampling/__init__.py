"""Privacy under random bins, from the bytes of C: enclosed bounds, and tests of claims.

Read `calibrations` (the tests of a claim, which `format/bins_claims.py` reads), `bins` (C by residue classes),
`star` and `losses` (bounds without samples) and `bets` (the sampled test). The proofs are in
docs/notes/amplification-proofs.md.
"""
