"""The gate by a clock of its own: what it keeps, for how long, and what it asks the ledger."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from factorize.api.access import gate as module
from factorize.api.access.caller import AccessRefused
from factorize.api.access.gate import FRESH_SECONDS, Gate
from factorize.api.access.key_register import KeyRegister, KeyRequest
from factorize.api.jobs.ledger import Ledger
from factorize.errors import StoreUnavailable


class Fallible(KeyRegister):
    """A register that may not answer."""

    gone = False

    def find(self, key_id):
        if self.gone:
            raise StoreUnavailable("the job database does not answer")
        return super().find(key_id)


class Time:
    """Stands for the module `time`."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def register(tmp_path: Path):
    with Ledger(f"sqlite:///{tmp_path}/jobs.sqlite") as ledger:
        yield Fallible(ledger.engine)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_two_gates_refuse_a_revoked_key_within_a_second_of_their_clock(register: Fallible, clock: Time) -> None:
    async def revoked() -> None:
        key, token = register.create(KeyRequest(name="k", scopes=["read"]))
        credential = token.text.encode()
        gates = [Gate(register, clock=lambda: key.created), Gate(register, clock=lambda: key.created)]
        for gate in gates:
            assert await gate.admit(credential) == key.caller
        register.revoke(key.id)
        clock.now += FRESH_SECONDS - 0.001
        for gate in gates:  # what was found holds for half a second
            assert await gate.admit(credential) == key.caller
        clock.now += 0.001
        assert FRESH_SECONDS <= 1
        for gate in gates:
            for _ in range(2):
                with pytest.raises(AccessRefused, match="the key is revoked"):
                    await gate.admit(credential)

    asyncio.run(revoked())


def test_nobody_is_let_in_by_a_ledger_that_does_not_answer(register: Fallible, clock: Time) -> None:
    async def gone() -> None:
        key, token = register.create(KeyRequest(name="k", scopes=["read"]))
        gate = Gate(register, clock=lambda: key.created)
        assert await gate.admit(token.text.encode()) == key.caller
        register.gone = True
        clock.now += 1
        with pytest.raises(StoreUnavailable):
            await gate.admit(token.text.encode())
        register.gone = False
        assert await gate.admit(token.text.encode()) == key.caller

    asyncio.run(gone())
