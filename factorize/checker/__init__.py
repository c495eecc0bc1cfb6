"""The checker: claims proved again from the bytes of a file.

It shares no code with the solvers or the second program for the sensitivity. Read in this order: `check`, `report`,
`claims` and `mechanism` (what is claimed), `sensitivity` (the privacy claim), `strategy` and `structures/` (a file, and
C from its tensors, a class for each structure), `spec/` (workloads as programs, and objectives),
`utility` (the roads to losses and bounds), `arithmetic/` (balls, series, the assumptions about the machine),
`losses/` (covariances, balls), `doubles/` (whole matrices with bounded rounding), `bounds/` (determinants, block
resolvents, classes), and `stored` (a stored B or C_inv). Privacy under sampling is in `sampling/`, and
that of two moments in `receipt`.
"""
