"""The gate by a clock of its own: what it keeps, for how long, and what it asks the ledger."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from factorize.api.access import gate as module
from factorize.api.access.caller import AccessRefused
from factorize.api.access.gate import FRESH_SECONDS, LONGEST_CREDENTIAL, Gate, credential_in
from factorize.api.access.key_register import KeyRegister, KeyRequest
from factorize.api.jobs.ledger import Ledger
from factorize.errors import StoreUnavailable


class Counted(KeyRegister):
    """A register that counts how often it is asked, and that may not answer."""

    asked = 0
    gone = False

    def find(self, key_id):
        self.asked += 1
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
        yield Counted(ledger.engine)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_two_gates_refuse_a_revoked_key_within_a_second_of_their_clock(register: Counted, clock: Time) -> None:
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


def test_nobody_is_let_in_by_a_ledger_that_does_not_answer(register: Counted, clock: Time) -> None:
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


def test_what_is_no_token_costs_no_look_and_is_not_kept(register: Counted, clock: Time) -> None:
    async def wrong() -> None:
        gate = Gate(register)
        token = register.create(KeyRequest(name="k", scopes=["read"]))[1].text
        for text in ("fk_", token[:-1], token + "0", "eyJhbGciOiJub25lIn0.e30.", "é"):
            with pytest.raises(AccessRefused):
                await gate.admit(text.encode())
        assert register.asked == 0 and not gate._known and not gate._pending

    asyncio.run(wrong())


def test_of_several_fields_none_is_taken() -> None:
    good = b"Bearer fk_x"
    assert credential_in([good]) == b"fk_x" and credential_in([b"bearer  fk_x "]) == b"fk_x"
    with pytest.raises(AccessRefused, match="several Authorization fields") as refused:
        credential_in([good, good])
    assert refused.value.problem == "bad-request"
    for values in ([], [b"Bearer"], [b"Basic fk_x"], [b"Bearer a b"], [b"Bearer a,b"], [b"Bearer" + b" " * 9000]):
        with pytest.raises(AccessRefused):
            credential_in(values)
    with pytest.raises(AccessRefused, match=f"longer than {LONGEST_CREDENTIAL} bytes"):
        credential_in([b"Bearer " + b"a" * LONGEST_CREDENTIAL])
