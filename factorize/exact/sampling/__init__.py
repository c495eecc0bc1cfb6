"""Privacy under balls-in-bins sampling, from the bytes of C: closed forms in enclosures, and claims of all protocols.

Read `calibrations` and `star_claim` (what is claimed), `bins` (C by residue classes), `star` (closed forms), `bets`,
`shared_bets`, `thinned_bets` and `quantiles` (the sampled tests). The proofs are in docs/notes/amplification-proofs.md.
"""
