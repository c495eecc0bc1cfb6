"""Standard normals from words of 64 bits: the inverse of the distribution function, by rational functions.

Algorithm AS 241, PPND16 (Wichura 1988), relative error about 1e-16; written here once more so that the checker draws
with no code of the accountant's.
"""

from __future__ import annotations

import numpy as np

_CENTRE = (
    (2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4)
    + (1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0),
    (5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4)
    + (5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0),
)
_MIDDLE = (
    (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0)
    + (3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1)
    + (6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0),
)
_FAR = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2)
    + (2.96560571828504891230e-1, 1.78482653991729133580e0, 5.46378491116411436990e0, 6.65790464350110377720e0),
    (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4)
    + (1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0),
)


def normals(words: np.ndarray) -> np.ndarray:
    """Return one standard normal for each word: the lowest bit is the sign (1 is plus), the rest the magnitude.

    Args:
        words: unsigned integers of 64 bits.
    """
    tails = ((words >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-64
    size = magnitudes(tails)
    return np.where(words & np.uint64(1), size, -size)


def magnitudes(tails: np.ndarray) -> np.ndarray:
    """Return -Phi^-1(q) for 0 < q <= 1/2."""
    inner = 0.5 - tails
    found = inner * _ratio(np.maximum(0.180625 - inner * inner, 0.0), _CENTRE)
    outer = np.flatnonzero(inner > 0.425)
    if len(outer):
        roots = np.sqrt(-np.log(tails[outer]))
        found[outer] = np.where(roots <= 5.0, _ratio(roots - 1.6, _MIDDLE), _ratio(roots - 5.0, _FAR))
    return np.asarray(found)


def _ratio(x: np.ndarray, polynomials: tuple[tuple[float, ...], tuple[float, ...]]) -> np.ndarray:
    above, below = (_horner(x, coefficients) for coefficients in polynomials)
    above /= below
    return above


def _horner(x: np.ndarray, coefficients: tuple[float, ...]) -> np.ndarray:
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total *= x
        total += coefficient
    return total
