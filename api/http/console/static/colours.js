// Colours of a matrix: the size of an entry on a logarithmic scale, and its sign.

const LARGEST_RATIO = 1e4;
const ONE_SIGN = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]; // viridis, in five steps
const POSITIVE = [[247, 247, 247], [244, 165, 130], [178, 24, 43], [103, 0, 31]];
const NEGATIVE = [[247, 247, 247], [146, 197, 222], [33, 102, 172], [5, 48, 97]];
const EMPTY = [128, 128, 128, 40];

/** What the numbers of a picture become. */
export class Colours {
  constructor(values) {
    let top = 0;
    let least = Infinity;
    let negative = false;
    for (const value of values) {
      const size = Math.abs(value);
      if (!(size > 0)) continue; // NaN, and zero
      if (size > top) top = size;
      if (size < least) least = size;
      if (value < 0) negative = true;
    }
    this.top = top || 1;
    this.least = Math.min(Math.max(least, this.top / LARGEST_RATIO), this.top / 10);
    this.signed = negative;
  }

  /** Return red, green, blue and opacity of a value; NaN is where there is none. */
  of(value) {
    if (Number.isNaN(value)) return EMPTY;
    const size = Math.abs(value);
    const share = size <= this.least ? 0 : Math.min(1, Math.log(size / this.least) / Math.log(this.top / this.least));
    if (!this.signed) return mixed(ONE_SIGN, share);
    return size < this.least ? mixed(POSITIVE, 0) : mixed(value < 0 ? NEGATIVE : POSITIVE, 0.08 + 0.92 * share);
  }

  /** Return the values at equal distances along the scale, from the lowest to the highest. */
  along(count) {
    const sizes = Array.from({ length: count }, (_, i) => this.least * (this.top / this.least) ** (i / (count - 1)));
    return this.signed ? [...sizes.map((size) => -size).reverse(), ...sizes] : sizes;
  }
}

function mixed(stops, share) {
  const place = share * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  return [0, 1, 2].map((i) => Math.round(stops[low][i] + (place - low) * (stops[low + 1][i] - stops[low][i]))).concat(255);
}
