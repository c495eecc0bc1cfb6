"""Spectral factorisation: the causal series with a given power spectrum whose inverse is causal too.

With l the Fourier coefficients of log(power) / 2 (the cepstrum), c = exp(l_0 + 2 sum_{t > 0} l_t x^t) has
|c(e^{iw})|^2 = power(w) and neither zeros nor poles in the open disc. On a grid of N frequencies both transforms wrap
around, so N is doubled until what can wrap is small: the second half of the cepstrum and the second half of c.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from factorize.errors import SolveFailed
from factorize.solvers.methods.compiled import Array

_COARSEST = 256
_FINEST = 2**23


@dataclass(frozen=True)
class MinimumPhase:
    """A causal series of minimum phase.

    Attributes:
        coefficients: shape (count,), the first one positive.
        grid: number of frequencies used.
        error: estimated relative error in mean square over the circle: the energy of the outer half of the cepstrum
            plus that of the outer half of the series. An estimate, because it takes for granted that both go on
            falling beyond the grid as they fall inside it.
    """

    coefficients: Array
    grid: int
    error: float


def minimum_phase(
    log_power: Callable[[Array], Array], count: int, *, tolerance: float = 1e-12, finest: int = _FINEST
) -> MinimumPhase:
    """Return the series c with |c(e^{iw})|^2 = exp(log_power(w)), to a relative error in mean square.

    A power spectrum with features of width d needs about 32 / d frequencies; one that reaches zero or infinity (the
    prefix sum's, at w = 0) has a cepstrum that falls like 1 / t and is refused.

    Args:
        log_power: logarithm of the power spectrum on frequencies in [0, pi]; taken as even.
        count: number of coefficients wanted.
        tolerance: on the error.
        finest: largest grid.

    Raises:
        SolveFailed: the largest grid does not resolve the spectrum, or a value is not finite.

    Reference:
        C24, Appendix F; Oppenheim and Schafer, Discrete-Time Signal Processing, on the complex cepstrum.
    """
    grid = max(_COARSEST, 1 << (2 * count - 1).bit_length())
    while True:
        coefficients, error = _factor(log_power, grid)
        if error <= tolerance:
            return MinimumPhase(coefficients[:count].copy(), grid, error)
        if grid >= finest or not np.isfinite(error):
            raise SolveFailed(
                f"the power spectrum is not resolved by {grid} frequencies (error {error:.1e}, tolerance "
                f"{tolerance:.1e}); its narrowest feature should be wider than 32 divided by that number"
            )
        grid *= 2


def _factor(log_power: Callable[[Array], Array], grid: int) -> tuple[Array, float]:
    from scipy.fft import irfft, rfft

    half = grid // 2
    cepstrum = irfft(0.5 * log_power(np.pi * np.arange(half + 1) / half), grid)
    folded = np.zeros(grid)
    folded[0], folded[1:half], folded[half] = cepstrum[0], 2 * cepstrum[1:half], cepstrum[half]
    with np.errstate(over="ignore", invalid="ignore"):
        series = irfft(np.exp(rfft(folded)), grid)
        error = np.linalg.norm(folded[half // 2 : half + 1]) + np.linalg.norm(series[half:]) / np.linalg.norm(series)
    return series, float(error)
