"""One step of any streaming strategy as torch operations on the device, from the coefficients of the step."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import torch

from factorize.adapters.coefficients import Redraws, StepPlan
from factorize.adapters.torch_normals import TorchNormals
from factorize.client.recurrences import Recurrence

_FAR = 40  # powers of two that a scale may be away from 1


class DeviceStreaming:
    """A recurrence and its state on a device.

    Where every state has a decay of its own, the state is kept divided by the product of its decays so far: they then
    act on a few coefficients, in float64, instead of on long vectors.

    Args:
        recurrence: of C, in float64.
        normals: Z.
        sigma: standard deviation of Z.
        start: first entry of the shard in the flattened noise.
        stop: one past the last.
        device: where to work.
        threads: that share the blocks on a CPU; the bits do not depend on it.

    Attributes:
        state: shape (vectors, stop - start), float32.
        scale: what the state is to be multiplied by, shape (vectors,).
    """

    def __init__(
        self,
        recurrence: Recurrence,
        normals: TorchNormals,
        sigma: float,
        start: int,
        stop: int,
        device: torch.device,
        threads: int,
    ) -> None:
        self.steps = recurrence.steps
        self.state = torch.zeros((recurrence.vectors, stop - start), device=device)
        self.scale = np.ones(recurrence.vectors)
        self._recurrence, self._normals, self._sigma = recurrence, normals, sigma
        self._start, self._stop, self._device = start, stop, device
        self._blocks = range(start // normals.block, -(-stop // normals.block))
        self._threads = min(threads, len(self._blocks)) if device.type == "cpu" else 0
        self._edges = [torch.empty(normals.block, device=device) for _ in range(max(1, self._threads))]
        draws = recurrence.redraws + 1 if recurrence.redraws else 0
        self._draws = [torch.empty((draws, normals.block), device=device) for _ in self._edges]
        self._pool: ThreadPoolExecutor | None = None

    def reset(self) -> None:
        """Go back to step 0."""
        self.state.zero_()
        self.scale[:] = 1

    def step(self, step: int, out: torch.Tensor) -> None:
        """Write row `step` into `out`, float32, shape (stop - start,), and go on; steps come in order."""
        plan = StepPlan.of(self._recurrence, step)
        with torch.no_grad():
            update = self._update(plan)
            gain = self._sigma * plan.gain
            if self._threads == 0:
                self._share(0, 1, step, gain, update, out)
                return
            if self._pool is None:
                self._pool = _single_threaded(self._threads)
            work = [
                self._pool.submit(self._share, i, self._threads, step, gain, update, out) for i in range(self._threads)
            ]
            for done in work:
                done.result()

    def _update(self, plan: StepPlan) -> _Update:
        """Fold the decays into the coefficients, or the scale into the state where there are none to fold."""
        decays = np.diag(plan.moves)
        folds = len(decays) > 1 and not (plan.moves - np.diag(decays)).any() and ((decays > 0) & (decays != 1)).all()
        mantissas, exponents = np.frexp(self.scale)
        far = np.abs(exponents) > _FAR if folds else self.scale != 1
        for row in np.flatnonzero(far):  # by powers of two, which round nothing
            self.state[row] *= float(np.ldexp(1.0, exponents[row]) if folds else self.scale[row])
            self.scale[row] = mantissas[row] if folds else 1
        if not folds:
            return _Update(plan, self._device)
        reads, self.scale = plan.reads * self.scale, self.scale * decays
        again = plan.redraws
        if again is not None:
            again = Redraws(again.steps, again.takes, again.loads / self.scale[:, None])
        return _Update(StepPlan(plan.gain, reads, np.eye(len(decays)), plan.writes / self.scale, again), self._device)

    def _share(self, worker: int, workers: int, step: int, gain: float, update: _Update, out: torch.Tensor) -> None:
        """Make every block of one worker: drawn in place where it lies whole in the shard."""
        size = self._normals.block
        with torch.no_grad():
            for block in self._blocks[worker::workers]:
                low, high = max(block * size, self._start), min((block + 1) * size, self._stop)
                at = slice(low - self._start, high - self._start)
                x = out[at]
                if update.redraws is not None:
                    within = slice(low - block * size, high - block * size)
                    draws = self._drawn(worker, [(step, gain), *((s, self._sigma) for s in update.redraws)], block)
                    update.apply_redrawn(x, self.state[:, at], draws[:, within])
                    continue
                if high - low == size:
                    self._normals.fill(x, step, block, gain)
                else:
                    self._normals.fill(self._edges[worker], step, block, gain)
                    x.copy_(self._edges[worker][low - block * size : high - block * size])
                update.apply(x, self.state[:, at])

    def _drawn(self, worker: int, wanted: list[tuple[int, float]], block: int) -> torch.Tensor:
        """Return a block of several rows of Z, each times its scale."""
        rows = self._draws[worker][: len(wanted)]
        for row, (step, scale) in zip(rows, wanted, strict=True):
            self._normals.fill(row, step, block, scale)
        return rows

    def close(self) -> None:
        """End the threads; the next step starts others."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


class _Update:
    """A step's coefficients on the device, with what is zero left out."""

    def __init__(self, plan: StepPlan, device: torch.device) -> None:
        k = len(plan.writes)
        diagonal = np.diag(plan.moves)
        off = (plan.moves - np.diag(diagonal)).any(axis=1)
        self._reads = _on(plan.reads, device) if plan.reads.any() else None
        self._mixed = np.flatnonzero(off).tolist()
        self._moves, self._mixed_writes = _on(plan.moves[off], device), _on(plan.writes[off][:, None], device)
        changed = ~off & ((diagonal != 1) | (plan.writes != 0))
        self._alone = [(r, float(diagonal[r]), float(plan.writes[r])) for r in np.flatnonzero(changed)]
        self._only_writes = k > 1 and bool((diagonal == 1).all() and changed.all())
        self._writes = _on(plan.writes[:, None], device)
        self.redraws = None if plan.redraws is None else plan.redraws.steps
        if plan.redraws is not None:
            self._takes = _on(np.concatenate([[1.0], plan.redraws.takes]), device)
            self._loads = _on(plan.redraws.loads, device)
            self._decays = None if (diagonal == 1).all() else _on(diagonal[:, None], device)

    def apply_redrawn(self, x: torch.Tensor, state: torch.Tensor, draws: torch.Tensor) -> None:
        """Write x, and bring the state to the next step, from u and the earlier draws; shape (redraws + 1, width)."""
        torch.mv(draws.T, self._takes, out=x)
        if self._reads is not None:
            torch.addmv(x, state.T, self._reads, alpha=-1, out=x)
        if self._decays is not None:
            state.mul_(self._decays)
        state.addmm_(self._loads, draws)

    def apply(self, x: torch.Tensor, state: torch.Tensor) -> None:
        """Turn u into x, and bring the state to the next step."""
        if self._reads is not None:
            torch.addmv(x, state.T, self._reads, alpha=-1, out=x)
        if self._only_writes:
            torch.addmm(state, self._writes, x[None], out=state)
            return
        mixed = self._moves @ state if self._mixed else None
        for row, keeps, writes in self._alone:
            state[row].mul_(keeps).add_(x, alpha=writes)
        if mixed is not None:
            state[self._mixed] = mixed.addcmul_(self._mixed_writes, x)


def _single_threaded(threads: int) -> ThreadPoolExecutor:
    """Return threads in which torch's own operations start no further ones; torch keeps that number per thread."""
    count, ready = torch.get_num_threads(), Barrier(threads + 1)

    def begin() -> None:
        torch.set_num_threads(1)
        ready.wait()

    pool = ThreadPoolExecutor(threads, "factorize-noise", begin)
    for _ in range(threads):
        pool.submit(int)
    ready.wait()
    torch.set_num_threads(count)
    return pool


def _on(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).to(device)
