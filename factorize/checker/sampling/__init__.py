"""Privacy under random bins, from the bytes of C: bounds in enclosures, and claims that are tested.

Read `calibrations` (what is tested of a claim, which `format/bins_claims.py` reads), `bins` (C by residue classes),
`star` and `losses` (bounds without samples) and `bets` (the sampled test). The proofs are in
docs/notes/amplification-proofs.md.
"""
