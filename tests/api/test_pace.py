"""The pace of a machine: what is made of an estimate, and when it is measured. Nothing here depends on how fast it is."""

from __future__ import annotations

import pytest
from specs import spec_of

from factorize import solvers
from factorize.api.pace import Pace, machine_pace
from factorize.solvers import Estimate

SLOW = Pace(multiplications=1e10, tiny=0.2, start=2.0)


def test_a_machine_is_measured_once_in_a_process() -> None:
    found = machine_pace()
    assert found.multiplications > 0 and found.tiny > 0 and found.start > 0
    assert found.tiny / found.start == pytest.approx(Pace().tiny / Pace().start) and machine_pace() is found


def test_seconds_are_processes_and_work_at_this_pace() -> None:
    tiny = solvers.choose(spec_of(12, "square_root"))
    nothing = solvers.estimate(tiny)
    rows = 0.2 * 12 / 800
    assert SLOW.work(tiny, nothing) == pytest.approx(rows + (3 * 12**3 + 3e10 * (nothing.seconds - 0.05)) / 1e10)
    assert SLOW.command(tiny, Estimate(0.05, 0)) == pytest.approx(0.2 + 2.0 + rows, rel=1e-5)
    assert SLOW.service(tiny, Estimate(0.05, 0)) == pytest.approx(0.2 + rows, rel=1e-5)
    assert SLOW.lane(tiny, Estimate(0.05, 0)) == pytest.approx(0.2 + rows, rel=1e-5)
    assert SLOW.service(tiny, Estimate(6.0, 0)) - SLOW.lane(tiny, Estimate(6.0, 0)) == pytest.approx(2.0)
    assert SLOW.work(tiny, Estimate(1.05, 0)) - SLOW.work(tiny, Estimate(0.05, 0)) == pytest.approx(3.0)
