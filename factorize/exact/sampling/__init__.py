"""Privacy under balls-in-bins sampling, from the bytes of C: closed forms in enclosures, and claims that are tested.

Read `calibrations` and `star_claim` (what is claimed), `bins` (C by residue classes), `star` (closed forms) and `bets`
(the sampled test). The proofs are in docs/notes/amplification-proofs.md.
"""
