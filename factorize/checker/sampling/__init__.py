"""Privacy under random bins, from the bytes of C: bounds in enclosures, and claims that are tested.

Read `calibrations` and `star_claim` (what is claimed), `bins` (C by residue classes), `star` and `allocation` (bounds
without samples), `call` and `tuples` (what is drawn) and `bets` (the sampled test). The proofs are in
docs/notes/amplification-proofs.md.
"""
