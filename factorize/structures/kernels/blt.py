"""Compiled recursions of a buffered Toeplitz matrix with constant decays. Imported on first use: numba is heavy."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def divide_rows(theta, omega, block, out):
    """Write each row of `block`, read as a series, over that of C: x_t = y_t - omega . s, s <- theta s + x_t."""
    buffers = theta.shape[0]
    state = np.empty(buffers)
    for r in range(block.shape[0]):
        state[:] = 0.0
        for t in range(block.shape[1]):
            value = block[r, t]
            for b in range(buffers):
                value -= omega[b] * state[b]
            for b in range(buffers):
                state[b] = theta[b] * state[b] + value
            out[r, t] = value


@numba.njit(cache=True, nogil=True)
def multiply_rows(theta, omega, block, out):
    """Write each row of `block`, read as a series, times that of C: y_t = x_t + omega . s, s <- theta s + x_t."""
    buffers = theta.shape[0]
    state = np.empty(buffers)
    for r in range(block.shape[0]):
        state[:] = 0.0
        for t in range(block.shape[1]):
            value = block[r, t]
            total = value
            for b in range(buffers):
                total += omega[b] * state[b]
                state[b] = theta[b] * state[b] + value
            out[r, t] = total


@numba.njit(cache=True, nogil=True)
def output_variances(theta, omega, follow, feed, read, through, variances):
    """Write the variance of each output of a workload driven by C^-1 times unit noise; shape (n,).

    x_i = y_i - omega . s, s <- theta s + x_i are the rows of C^-1 y; the workload takes x: o_i = read_i . u + through_i
    x_i, u <- follow_i u + feed_i x_i. With T the block diagonal of theta and follow_i, load = (1, feed_i) and row =
    (-omega, 0), both states go to T (s, u) + load x_i, and their covariance S to T S T^T and terms of rank one.
    """
    n, buffers, states = through.shape[0], theta.shape[0], feed.shape[1]
    size = buffers + states
    cov = np.zeros((size, size))
    half = np.empty((size, size))
    image = np.empty(size)
    moved = np.empty(size)
    load = np.ones(size)
    for i in range(n):
        total = through[i] * through[i]
        inner = 1.0
        for a in range(size):
            image[a] = 0.0
            for b in range(buffers):
                image[a] -= cov[a, b] * omega[b]
        for a in range(buffers):
            inner -= omega[a] * image[a]
        for a in range(size):
            gain = -through[i] * omega[a] if a < buffers else read[i, a - buffers]
            onto = through[i] * image[a]
            for b in range(states):
                onto += cov[a, buffers + b] * read[i, b]
            total += gain * onto
        variances[i] = total
        for a in range(states):
            load[buffers + a] = feed[i, a]
        _transform(theta, follow[i], cov, half, image, moved)
        for a in range(size):
            for b in range(a + 1):
                entry = cov[a, b] + load[a] * moved[b] + (moved[a] + inner * load[a]) * load[b]
                cov[a, b] = entry
                cov[b, a] = entry


@numba.njit(cache=True, nogil=True)
def _transform(theta, follow, cov, half, image, moved):
    """Replace cov by T cov T^T and write T image, T being diag(theta) and then `follow`."""
    buffers, states = theta.shape[0], follow.shape[0]
    size = buffers + states
    for a in range(buffers):
        moved[a] = theta[a] * image[a]
        for b in range(size):
            half[a, b] = theta[a] * cov[a, b]
    for a in range(states):
        moved[buffers + a] = 0.0
        for b in range(size):
            half[buffers + a, b] = 0.0
        for c in range(states):
            moved[buffers + a] += follow[a, c] * image[buffers + c]
            for b in range(size):
                half[buffers + a, b] += follow[a, c] * cov[buffers + c, b]
    for a in range(size):
        for b in range(buffers):
            cov[a, b] = half[a, b] * theta[b]
        for b in range(states):
            entry = 0.0
            for c in range(states):
                entry += half[a, buffers + c] * follow[b, c]
            cov[a, buffers + b] = entry
