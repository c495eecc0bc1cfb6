// Axes: from numbers to places, and the numbers that are written beside them.

/** A linear or logarithmic axis from the range of values to the range of places. */
export class Scale {
  constructor(values, [from, to], logarithmic = false) {
    const usable = values.filter((value) => Number.isFinite(value) && (!logarithmic || value > 0));
    let low = usable.length ? usable.reduce((a, b) => Math.min(a, b)) : logarithmic ? 0.1 : 0;
    let high = usable.length ? usable.reduce((a, b) => Math.max(a, b)) : 1;
    this.logarithmic = logarithmic;
    if (low === high) [low, high] = logarithmic ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
    if (logarithmic) [low, high] = [Math.log10(low), Math.log10(high)];
    [this.low, this.high, this.from, this.to] = [low, high, from, to];
  }

  /** Return the place of a value. */
  at(value) {
    const here = this.logarithmic ? Math.log10(value) : value;
    return this.from + ((here - this.low) / (this.high - this.low)) * (this.to - this.from);
  }

  /** Return up to `most` round values within the range. */
  ticks(most = 6) {
    return this.logarithmic && this.high - this.low > 1 ? this.decades(most) : this.steps(most);
  }

  decades(most) {
    const low = Math.ceil(this.low - 1e-9);
    const high = Math.floor(this.high + 1e-9);
    const step = Math.max(1, Math.ceil((high - low + 1) / most));
    const found = [];
    for (let power = low; power <= high; power += step) found.push(10 ** power);
    return found;
  }

  steps(most) {
    const [low, high] = this.logarithmic ? [10 ** this.low, 10 ** this.high] : [this.low, this.high];
    const rough = (high - low) / most;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough);
    const found = [];
    for (let number = Math.ceil(low / step - 1e-9); number * step <= high * (1 + 1e-12) + step * 1e-9; number += 1) found.push(Number((number * step).toPrecision(12)));
    return found;
  }
}
