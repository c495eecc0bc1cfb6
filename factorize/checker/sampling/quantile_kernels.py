"""Normal quantiles of words, compiled: algorithm AS 241 (Wichura 1988), to 3e-15.

scipy's `ndtri` takes twice as long; `bets.normals` calls it where nothing is compiled.
"""

import math

import numpy as np

from factorize.checker.arithmetic.loops import kernel, part


@part()
def _over(r, top, bottom):
    """Return the ratio of two polynomials, whose coefficients begin with the highest power."""
    above, below = top[0], bottom[0]
    for i in range(1, 8):
        above, below = above * r + top[i], below * r + bottom[i]
    return above / below


@kernel()
def write_normals(words, normals):
    """Write for each even word the quantile of ((word >> 1) + 1/2) 2^-64, and for each odd word its negative."""
    for i in range(len(words)):
        chance = ((words[i] >> np.uint64(1)) + 0.5) * 2.0**-64
        if chance >= 0.075:
            size = (0.5 - chance) * _over(0.180625 - (0.5 - chance) ** 2, _MIDDLE_TOP, _MIDDLE_BOTTOM)
        else:
            root = math.sqrt(-math.log(chance))
            near = root <= 5.0
            size = _over(root - 1.6, _TAIL_TOP, _TAIL_BOTTOM) if near else _over(root - 5.0, _END_TOP, _END_BOTTOM)
        normals[i] = size if words[i] & np.uint64(1) else -size


def _floats(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


_MIDDLE_TOP = _floats(
    "2509.0809287301226727 33430.575583588128105 67265.770927008700853 45921.953931549871457 "
    "13731.693765509461125 1971.5909503065514427 133.14166789178437745 3.387132872796366608"
)
_MIDDLE_BOTTOM = _floats(
    "5226.495278852545925 28729.085735721942674 39307.89580009271061 21213.794301586595867 "
    "5394.1960214247511077 687.1870074920579083 42.313330701600911252 1.0"
)
_TAIL_TOP = _floats(
    "7.7454501427834140764e-4 0.0227238449892691845833 0.24178072517745061177 1.27045825245236838258 "
    "3.64784832476320460504 5.7694972214606914055 4.6303378461565452959 1.42343711074968357734"
)
_TAIL_BOTTOM = _floats(
    "1.05075007164441684324e-9 5.475938084995344946e-4 0.0151986665636164571966 0.14810397642748007459 "
    "0.68976733498510000455 1.6763848301838038494 2.05319162663775882187 1.0"
)
_END_TOP = _floats(
    "2.01033439929228813265e-7 2.71155556874348757815e-5 0.0012426609473880784386 0.026532189526576123093 "
    "0.29656057182850489123 1.7848265399172913358 5.4637849111641143699 6.6579046435011037772"
)
_END_BOTTOM = _floats(
    "2.04426310338993978564e-15 1.4215117583164458887e-7 1.8463183175100546818e-5 7.868691311456132591e-4 "
    "0.0148753612908506148525 0.13692988092273580531 0.59983220655588793769 1.0"
)
