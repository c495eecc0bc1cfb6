"""The run of a receipt: who writes it, which processes and noise it is of, and which weights it releases."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from receipt_runs import signed
from safetensors.numpy import save_file

import factorize
from factorize.checker.__main__ import main
from factorize.checker.receipt import check_receipt
from factorize.encoding import canonical_json, json_digest
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.training import fixed_order
from factorize.training.auditor import ParticipationAuditor
from factorize.training.receipt import Receipt
from factorize.training.statement import PrivacyStatement
from papers.training.order_record import OrderRecord

EXAMPLES, BATCH, EPOCHS, N = 24, 6, 3, 12
SECRET = 0x9E3779B97F4A7C15F39CC0605CEDC834
ORDER = fixed_order(EXAMPLES, BATCH, epochs=EPOCHS)
WEIGHTS = {"layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "layer.bias": np.ones(2)}
Step = Callable[[int], Any]


@pytest.fixture(scope="module")
def factors() -> Any:
    return factorize.solve("prefix", n=N, epochs=EPOCHS, mechanism="banded_toeplitz", bands=2)


def begun(receipt: Receipt, factors: Any, seed: int = SECRET) -> Step:
    """Return what takes the steps up to one."""
    calibration = factors.calibrate(epsilon=2.0, delta=1e-5, divisor=BATCH)
    noise = factors.noise(calibration, 2, seed=seed)
    record = OrderRecord(receipt, calibration, factors, [ORDER], commitments=[noise.commitment])

    def take(last: int) -> None:
        while noise.step < last:
            record.record(noise.step)
            noise.next()

    take(1)
    return take


def checked(folder: Path, factors: Any, *names: str, arguments: tuple[str, ...] = ()) -> int:
    factors.save(folder / "factors.safetensors")
    return main([*(str(folder / name) for name in (*names, "factors.safetensors")), *arguments])


def taken_by(path: Path, factors: Any, seed: int = SECRET) -> Receipt:
    receipt = Receipt(path)
    begun(receipt, factors, seed)(N)
    return receipt


def in_another_process(work: Callable[[], Any]) -> int:
    """Return the process that does it, and ends with 17 where a parameter is refused."""
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        except InvalidParameter as error:
            code = 17 if re.search(f"is in use by process {os.getppid()} on ", str(error)) else 1
        finally:
            os._exit(code)
    return child


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_one_process_at_a_time_writes_a_receipt(tmp_path: Path, factors: Any) -> None:
    path = tmp_path / "receipt.json"
    first = Receipt(path)
    take = begun(first, factors)
    assert ended(in_another_process(lambda: begun(Receipt(path), factors))) == 17
    take(3)
    child = in_another_process(lambda: (begun(Receipt(tmp_path / "o.json"), factors), time.sleep(60)))
    while not (tmp_path / "o.json").exists():
        time.sleep(0.01)
    with pytest.raises(InvalidParameter, match=f"o.json is in use by process {child} on "):
        begun(Receipt(tmp_path / "o.json"), factors)
    os.kill(child, signal.SIGKILL)
    ended(child)
    begun(Receipt(tmp_path / "o.json"), factors)

    again = Receipt(path)  # a cell of a notebook that runs again: the noise goes on from step 0
    take_again = begun(again, factors)
    with pytest.raises(InvalidParameter, match="has changed since this run wrote it"):
        take(4)
    with pytest.raises(InvalidParameter, match="has changed since this run wrote it"):
        first.close()
    take_again(N)
    again.close()
    assert json.loads(path.read_text())["steps"]["processes"] == [[0, 3], [0, N]]
    assert checked(tmp_path, factors, "receipt.json") == 4  # which it says: three steps were taken twice


@pytest.mark.parametrize("change", ["text", "gone"])
def test_a_receipt_that_was_changed_on_the_disk_is_written_no_more(tmp_path: Path, factors: Any, change: str) -> None:
    receipt = Receipt(tmp_path / "receipt.json")
    take = begun(receipt, factors)
    kept = receipt.path.read_bytes()
    take(2)
    receipt.path.unlink() if change == "gone" else receipt.path.write_bytes(kept)
    with pytest.raises(InvalidParameter, match="has changed since this run wrote it"):
        take(3)


def test_a_step_that_no_receipt_counts_gets_no_noise(
    tmp_path: Path, factors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even in a loop that goes on after the error."""
    calibration = factors.calibrate(epsilon=2.0, delta=1e-5)
    auditor, receipt = ParticipationAuditor.of(calibration, N), Receipt(tmp_path / "receipt.json")
    noise = factors.noise(calibration, 2, seed=SECRET + 5, auditor=auditor)
    sizes = {"steps": N, "examples": EXAMPLES, "used": EXAMPLES}
    statement = PrivacyStatement(calibration, factors.digest, **sizes, sampling="fixed", unit="example")
    receipt.begin(statement, [factors], auditor, generator="sfc64", dtype="float32")
    auditor.record([0])
    noise.next()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr("factorize.training.receipt.replace_file", full)
        auditor.record([1])
    with pytest.raises(InvalidParticipation, match="step 1 was not written into the receipt, so release nothing"):
        noise.next()
    assert json.loads(receipt.path.read_text())["steps"]["processes"] == [[0, 1]]


def test_a_process_that_is_killed_leaves_a_whole_receipt_and_a_free_lock(tmp_path: Path, factors: Any) -> None:
    path = tmp_path / "receipt.json"
    for turn in range(4):
        child = in_another_process(lambda: [begun(Receipt(path), factors)(N) for _ in range(10_000)])
        while not path.exists():
            time.sleep(0.01)
        time.sleep(0.05 * (turn + 1))
        os.kill(child, signal.SIGKILL)
        assert ended(child) == -signal.SIGKILL
        document = json.loads(path.read_bytes())
        assert document.pop("digest") == json_digest(document)
    begun(Receipt(path), factors)


def test_an_open_receipt_is_never_verified(tmp_path: Path, factors: Any, capsys: pytest.CaptureFixture[str]) -> None:
    receipt = taken_by(tmp_path / "receipt.json", factors)
    assert checked(tmp_path, factors, "receipt.json") == 7
    assert capsys.readouterr().out.startswith("OPEN, and the loss was not looked at\n")
    assert checked(tmp_path, factors, "receipt.json", arguments=("--output", "json")) == 7
    said = json.loads(capsys.readouterr().out)
    assert (said["verified"], said["open"], said["complete"]) == (False, True, True)
    receipt.close()
    assert checked(tmp_path, factors, "receipt.json") == 0
    assert capsys.readouterr().out.startswith("verified, and the loss was not looked at\n")


def test_two_runs_of_one_noise_are_told_by_their_receipts(
    tmp_path: Path, factors: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seed in (("a", SECRET), ("b", SECRET), ("c", SECRET + 1)):
        taken_by(tmp_path / f"{name}.json", factors, seed).close()
    shutil.copy(tmp_path / "a.json", tmp_path / "copy.json")
    for names, code, words in (
        ("ab", 4, "two runs with the same noise, and both took the steps 0 to 12"),
        ("ac", 0, "no step of one has the noise of the other"),
        (("a", "copy"), 0, "of one run: the same receipt"),
        (("c", "copy", "b"), 4, "2 and 3 are of two runs with the same noise"),
    ):
        assert checked(tmp_path, factors, *(f"{name}.json" for name in names)) == code, names
        assert words in capsys.readouterr().out
    secret = SECRET.to_bytes(16, "little")
    for text in (secret.hex(), secret[::-1].hex(), str(SECRET)):
        assert text not in (tmp_path / "a.json").read_text()


def test_a_run_that_went_on_twice_is_told_by_its_receipts(
    tmp_path: Path, factors: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A backup of the receipt, brought back elsewhere, is out of reach of the lock; the chain shows it."""
    path = tmp_path / "receipt.json"
    take = begun(Receipt(path), factors)
    take(7)
    for name in ("early", "left"):
        shutil.copy(path, tmp_path / f"{name}.json")
    take(9)
    shutil.copy(path, tmp_path / "longer.json")
    left = Receipt(tmp_path / "left.json", unpublished=True)
    begun(left, factors)(N)
    left.close()
    assert checked(tmp_path, factors, "left.json") == 0
    assert checked(tmp_path, factors, "early.json", "longer.json") == 7
    assert checked(tmp_path, factors, "early.json", "left.json") == 7
    capsys.readouterr()
    assert checked(tmp_path, factors, "left.json", "longer.json") == 4
    assert "of one run, which continued twice from one state" in capsys.readouterr().out

    for part in ({"commitments": ["0" * 64]}, {"generator": "shake128"}):
        early = json.loads((tmp_path / "early.json").read_bytes())
        (tmp_path / "forged.json").write_bytes(signed({**early, "noise": early["noise"] | part}))
        assert checked(tmp_path, factors, "forged.json", "longer.json") == 4

    right = Receipt(tmp_path / "early.json", unpublished=True)
    begun(right, factors)(N)
    right.close()
    assert checked(tmp_path, factors, "early.json") == 0
    assert checked(tmp_path, factors, "left.json", "early.json") == 4


def continued(path: Path, factors: Any, parts: list[tuple[int, int, bool]]) -> Receipt:
    """Return the receipt of processes that each take some steps, and say whether nobody saw those before."""
    for first, last, unpublished in parts:
        receipt = Receipt(path, unpublished=unpublished)
        calibration = factors.calibrate(epsilon=2.0, delta=1e-5, divisor=BATCH)
        auditor = ParticipationAuditor.of(calibration, N)
        for step in range(first):
            auditor.record(ORDER[step])
        statement = PrivacyStatement(
            calibration, factors.digest, N, EXAMPLES, EXAMPLES, "fixed", "example", factors=factors
        )
        receipt.begin(statement, [factors], auditor, generator="sfc64", dtype="float32")
        for step in range(first, last):
            auditor.record(ORDER[step])
    return receipt


def test_receipts_that_differ_about_where_a_process_began_contradict_each_other(tmp_path: Path, factors: Any) -> None:
    continued(tmp_path / "one.json", factors, [(0, 7, False), (6, 9, True)])
    other = json.loads((tmp_path / "one.json").read_bytes())
    other["steps"]["processes"][1] = [4, 9]
    (tmp_path / "other.json").write_bytes(signed(other))
    assert checked(tmp_path, factors, "other.json") == 7
    assert checked(tmp_path, factors, "one.json", "other.json") == 4


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([(0, 7, False), (5, 9, False), (8, N, True)], 4),  # the last one says nothing of steps 5 to 7
        ([(0, 7, False), (5, 9, True), (8, N, False)], 4),
        ([(0, 7, False), (5, 9, True), (9, N, False)], 0),  # and need not say again what the second one said
        ([(0, 7, False), (5, 9, True), (8, N, True)], 0),
        ([(0, 7, True), (7, 9, False), (8, N, True)], 0),
    ],
)
def test_each_process_speaks_for_the_steps_that_it_takes_again(
    tmp_path: Path, factors: Any, parts: list[tuple[int, int, bool]], code: int
) -> None:
    receipt = continued(tmp_path / "receipt.json", factors, parts)
    if code:
        with pytest.raises(InvalidParameter, match="were taken twice with the same noise, so no epsilon holds"):
            receipt.epsilon_so_far()
    else:
        assert receipt.epsilon_so_far() > 1.9
    receipt.close()
    assert checked(tmp_path, factors, "receipt.json") == code


def test_no_step_is_released_after_the_end_or_after_a_gap(tmp_path: Path, factors: Any) -> None:
    receipt = Receipt(tmp_path / "receipt.json")
    take = begun(receipt, factors)
    take(5)
    receipt.close()
    with pytest.raises(InvalidParameter, match="the run ended after 5 steps, but step 5 is about to be released"):
        take(6)
    assert checked(tmp_path, factors, "receipt.json") == 0
    with pytest.raises(InvalidParameter, match="has 0 steps, but the next is step 4"):
        continued(tmp_path / "late.json", factors, [(4, N, False)])
    with pytest.raises(InvalidParameter, match="has 3 steps, but the next is step 4"):
        continued(tmp_path / "gap.json", factors, [(0, 3, False), (4, N, False)])
    continued(tmp_path / "whole.json", factors, [(0, 3, False), (3, N, False)]).close()
    assert checked(tmp_path, factors, "whole.json") == 0


def test_a_statement_says_what_its_calibration_relies_on(factors: Any) -> None:
    state = partial(PrivacyStatement, factors.calibrate(epsilon=2.0, delta=1e-5), factors.digest, N, 24, 24)
    with pytest.raises(InvalidParameter, match="sampling='balls_in_bins', but the calibration relies on 'fixed'"):
        state("balls_in_bins", "example")
    for delta in (-1e-9, math.nan, math.inf):
        with pytest.raises(InvalidParameter, match="overflow_delta"):
            state("fixed", "example", overflow_delta=delta)
    assert state("fixed", "example", overflow_delta=0.0).delta == 1e-5


def test_a_receipt_is_of_the_factors_and_other_runs_of_its_statement(tmp_path: Path, factors: Any) -> None:
    other = factorize.solve("prefix", n=N, epochs=EPOCHS, mechanism="identity")
    calibration = factors.calibrate(epsilon=2.0, delta=1e-5)
    own = PrivacyStatement(calibration, factors.digest, N, EXAMPLES, EXAMPLES, "fixed", "example")
    for statement, given, words in (
        (own, [other], "the statement is for the factors"),
        (own, [factors, other], "the statement is for the factors"),
        (replace(own, digest=other.digest), [other], "the calibration is for a sensitivity"),
        (replace(own, steps=2 * N), [factors], "is of 24 steps, the factors of 12"),
    ):
        with pytest.raises(InvalidParameter, match=words):
            Receipt(tmp_path / "wrong.json").begin(
                statement, given, ParticipationAuditor.of(calibration, N), generator="sfc64", dtype="float32"
            )
    looser = ParticipationAuditor({"kind": "min_sep", "min_sep": 4}, N)
    with pytest.raises(InvalidParameter, match="use ParticipationAuditor.of"):
        Receipt(tmp_path / "wrong.json").begin(own, [factors], looser, generator="sfc64", dtype="float32")
    for options in ({"others": {"pilot": 0.2}}, {"trials": 3}):
        with pytest.raises(InvalidParameter, match="state each once"):
            Receipt(tmp_path / "wrong.json", **options).begin(
                replace(own, others={"pilot": 0.3}, trials=4),
                [factors],
                ParticipationAuditor.of(calibration, N),
                generator="sfc64",
                dtype="float32",
            )
    assert not (tmp_path / "wrong.json").exists()
    stated = replace(own, others={"pilot": 0.3}, trials=4)
    receipt = Receipt(tmp_path / "receipt.json", others={"probe": 0.1, "pilot": 0.3}, trials=4)
    receipt.begin(stated, [factors], ParticipationAuditor.of(calibration, N), generator="sfc64", dtype="float32")
    named = {other["name"] for other in json.loads(receipt.path.read_bytes())["others"]}
    assert named == {"pilot", "probe", "3 more trials"}
    endless = factorize.solve("prefix", n="unbounded", mechanism="nu_toeplitz", nu=0.1)
    planned = endless.calibrate(epsilon=2.0, delta=1e-5)
    state = PrivacyStatement(planned, endless.digest, 1000, EXAMPLES, EXAMPLES, "fixed", "example")
    auditor = ParticipationAuditor.of(planned, 1000)  # a plan of fewer steps than the factors have is fine
    Receipt(tmp_path / "plan.json").begin(state, [endless], auditor, generator="sfc64", dtype="float32")


def test_a_broken_chain_is_refused(tmp_path: Path, factors: Any) -> None:
    path = tmp_path / "receipt.json"
    begun(Receipt(path), factors)(5)
    receipt = Receipt(path, unpublished=True)
    begun(receipt, factors)(N)
    receipt.close()
    factors.save(tmp_path / "factors.safetensors")
    files, text = [(tmp_path / "factors.safetensors").read_bytes()], path.read_text()
    assert check_receipt(text.encode(), files).supported
    for change, words in (
        (lambda d: d["steps"]["processes"][0].__setitem__(1, 4), "does not continue"),
        (lambda d: d["steps"]["chain"][0].update(process="0" * 64), "does not continue"),
        (lambda d: d["steps"]["chain"].pop(0), "which process took which steps"),
        (lambda d: d.update(run="1" * 64), "does not continue"),
        (lambda d: d.update(loss="fine"), "not one of per_example"),
        (lambda d: d["noise"].update(commitments=["0" * 63]), "not a sha256"),
        (lambda d: d["noise"].update(commitments=["0" * 64, "1" * 64]), "one noise for each"),
    ):
        document = json.loads(text)
        del document["digest"]
        change(document)
        report = check_receipt(canonical_json({**document, "digest": json_digest(document)}), files)
        assert not report.supported and any(words in sentence for sentence in report.failed), report.failed


def test_a_receipt_names_the_weights(tmp_path: Path, factors: Any, capsys: pytest.CaptureFixture[str]) -> None:
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    save_file(WEIGHTS, tmp_path / "same.safetensors", metadata={"format": "np"})
    save_file({**WEIGHTS, "layer.bias": np.zeros(2)}, tmp_path / "other.safetensors")
    for name in ("folder", "moved", "more"):
        (tmp_path / name / "part").mkdir(parents=True)
        for part in ("part/a.bin", "b.bin"):
            (tmp_path / name / part).write_bytes(part.encode())
    (tmp_path / "more" / "c.bin").touch()
    nested = {"layer": {"weight": WEIGHTS["layer.weight"], "bias": WEIGHTS["layer.bias"]}}
    for model, right, wrong in (
        (tmp_path / "model.safetensors", "model.safetensors", ("same.safetensors", "other.safetensors", "folder")),
        (str(tmp_path / "folder"), "moved", ("more", "model.safetensors")),
        (nested, "same.safetensors", ("other.safetensors", "folder", "folder/b.bin")),
    ):
        receipt = taken_by(tmp_path / "receipt.json", factors)
        receipt.close(model=model)
        assert checked(tmp_path, factors, "receipt.json", arguments=("--model", str(tmp_path / right))) == 0
        assert "proved         receipt.model: the receipt names " in capsys.readouterr().out
        for name in wrong:
            assert checked(tmp_path, factors, "receipt.json", arguments=("--model", str(tmp_path / name))) != 0, name
        receipt.path.unlink()
    receipt = taken_by(tmp_path / "receipt.json", factors)
    twice = {"a.b": np.ones(1), "a": {"b": np.zeros(1)}}
    for bad in (np.ones(3), {}, {"step": 3}, {"names": np.array(["a"])}, twice):
        with pytest.raises(InvalidParameter):
            receipt.close(model=bad)
    receipt.close()
    assert checked(tmp_path, factors, "receipt.json", arguments=("--model", str(tmp_path / "other.safetensors"))) == 6


def test_weights_that_no_digest_tells_are_refused_and_the_run_stays_open(tmp_path: Path, factors: Any) -> None:
    """A folder that is not filled yet, and one that holds the receipt, which changes when it states the digest."""
    (tmp_path / "run" / "empty").mkdir(parents=True)
    (tmp_path / "run" / "empty.bin").touch()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    receipt = taken_by(tmp_path / "run" / "receipt.json", factors)
    for model, words in (
        (tmp_path / "run" / "empty", "this directory has no weights"),
        (tmp_path / "run" / "empty.bin", "this file has no weights"),
        ({"params": {}}, "these tensors have no weights"),
        (tmp_path / "run", "holds the receipt receipt.json, which changes now"),
        (str(tmp_path / "link"), "holds the receipt"),
        (receipt.path, "holds the receipt"),
    ):
        with pytest.raises(InvalidParameter, match=words):
            receipt.close(model=model)
        assert json.loads(receipt.path.read_text())["steps"]["ended"] is False
    (tmp_path / "run" / "empty" / "model.bin").write_bytes(b"weights")
    receipt.close(model=tmp_path / "run" / "empty")
    assert checked(tmp_path / "run", factors, "receipt.json", arguments=("--model", str(tmp_path / "run/empty"))) == 0
