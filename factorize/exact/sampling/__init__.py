"""Privacy under balls-in-bins sampling, from the bytes of C: closed forms in enclosures, and the claims of star-1.

Read `calibrations` and `star_claim` (what is claimed), `bins` (C by residue classes), `star` (closed forms), `bets` and
`quantiles` (the sampled test). The proofs are in docs/notes/amplification-proofs.md.
"""
