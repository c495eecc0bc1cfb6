// Power spectra by the fast Fourier transform, for lengths that are powers of two.

/** Return [frequency in cycles per step, |sum_k c_k exp(-2 pi i f k)|^2] for 0 < f <= 1/2. */
export function powerSpectrum(values) {
  const size = 2 ** Math.max(5, Math.ceil(Math.log2(2 * values.length)));
  const real = new Float64Array(size);
  const imaginary = new Float64Array(size);
  real.set(values);
  transform(real, imaginary);
  return Array.from({ length: size / 2 }, (_, i) => [(i + 1) / size, real[i + 1] ** 2 + imaginary[i + 1] ** 2]);
}

/** Transform in place. */
export function transform(real, imaginary) {
  const size = real.length;
  for (let i = 1, j = 0; i < size; i += 1) {
    let bit = size >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) for (const part of [real, imaginary]) [part[i], part[j]] = [part[j], part[i]];
  }
  for (let length = 2; length <= size; length *= 2) {
    const half = length / 2;
    for (let k = 0; k < half; k += 1) {
      const [cosine, sine] = [Math.cos((-2 * Math.PI * k) / length), Math.sin((-2 * Math.PI * k) / length)];
      for (let i = k; i < size; i += length) butterfly(real, imaginary, i, i + half, cosine, sine);
    }
  }
}

function butterfly(real, imaginary, a, b, cosine, sine) {
  const x = real[b] * cosine - imaginary[b] * sine;
  const y = real[b] * sine + imaginary[b] * cosine;
  [real[b], imaginary[b]] = [real[a] - x, imaginary[a] - y];
  [real[a], imaginary[a]] = [real[a] + x, imaginary[a] + y];
}
