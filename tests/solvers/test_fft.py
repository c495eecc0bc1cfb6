"""The FFT mechanism against its definition with explicit complex matrices."""

import numpy as np
import pytest
from specs import solved

from factorize.errors import SolveFailed
from factorize.solvers.formulas.fft import covariance, square_equivalent


def published(column):
    """Encoder sqrt(L) F E and decoder E^T F* sqrt(L) with the unitary transform of length 2n."""
    n = len(column)
    transform = np.fft.fft(np.eye(2 * n), axis=0, norm="ortho")
    root = np.sqrt(np.fft.fft(np.concatenate([column, np.zeros(n)])).astype(complex))
    encoder = root[:, None] * transform[:, :n]
    decoder = transform.conj().T[:n] * root
    return encoder, decoder


def prefix(n):
    return np.tril(np.ones((n, n)))


def fft(n, decoder="circulant"):
    return solved(n, {"kind": "fft", "decoder": decoder})


@pytest.mark.parametrize("n", [1, 2, 5, 8, 33])
def test_the_published_noise_has_the_covariance_of_the_square_matrix(n):
    _, decoder = published(np.ones(n))
    # The real part of decoder (x + i y), x and y independent with unit variance.
    real = decoder.real @ decoder.real.T + decoder.imag @ decoder.imag.T
    found = fft(n)
    rows = found.rows("B", 0, n)
    assert np.allclose(rows @ rows.T, real, rtol=0, atol=1e-11)
    assert np.allclose(real[0], covariance(np.ones(n)), rtol=0, atol=1e-12)
    assert np.allclose(rows @ found.rows("C", 0, n), prefix(n), rtol=0, atol=1e-11)


@pytest.mark.parametrize("n", [1, 2, 5, 8, 33])
def test_the_optimal_decoder_is_the_pseudo_inverse(n):
    encoder, _ = published(np.ones(n))
    decoder = prefix(n) @ np.linalg.pinv(encoder)
    rows = fft(n, "optimal").rows("B", 0, n)
    assert np.allclose(rows @ rows.T, (decoder @ decoder.conj().T).real, rtol=0, atol=1e-11)
    gram = (encoder.conj().T @ encoder).real
    whole = square_equivalent(np.ones(n), optimal=True)
    assert np.allclose(whole.T @ whole, gram, rtol=0, atol=1e-12)
    assert not np.triu(whole, 1).any() and (np.diagonal(whole) > 0).all()


@pytest.mark.parametrize("n", [4, 16, 100])
def test_single_participation(n):
    encoder, decoder = published(np.ones(n))
    charged = (np.abs(encoder) ** 2).sum(axis=0).max()  # what the paper charges
    own, best = fft(n).certificate, fft(n, "optimal").certificate
    assert own.sensitivity.kind == best.sensitivity.kind == "exact"
    assert best.sensitivity.value**2 == pytest.approx(charged, rel=1e-11)
    assert own.sensitivity.value**2 <= charged * (1 + 1e-12)
    assert own.loss.mean_squared <= charged**2 * (1 + 1e-12)
    assert best.loss.mean_squared < own.loss.mean_squared
    assert own.relative_gap > best.relative_gap > 0


def test_the_smallest_case_by_hand():
    """n = 2: abs(fft(1, 1, 0, 0)) = (2, sqrt 2, 0, sqrt 2), so K = [[(1 + sqrt 2) / 2, 1/2], [1/2, (1 + sqrt 2) / 2]]."""
    corner = (1 + 2**0.5) / 2
    assert np.allclose(covariance(np.ones(2)), [corner, 0.5])
    certificate = fft(2).certificate
    assert certificate.loss.mean_squared / certificate.sensitivity.value**2 == pytest.approx(corner)


def test_a_column_whose_noise_is_singular_is_refused():
    column = np.exp(-(((np.arange(200) - 100) / 12) ** 2) / 2)  # smooth, so that few frequencies carry it
    with pytest.raises(SolveFailed, match="singular"):
        square_equivalent(column, optimal=False)
