"""The receipt of a run: its releases, their guarantee and its basis, for an auditor.

One JSON file (docs/receipt.md). It is replaced as a whole before each step is released, so that the receipt of all that
was released remains, however the process ends. `factorize-check` proves it from the factor files.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from factorize.encoding import JsonObject, canonical_json, json_digest
from factorize.errors import InvalidParameter, MalformedJson
from factorize.format.files import replace_file
from factorize.format.manifest import certified
from factorize.format.quantities import ClaimRefused
from factorize.format.receipts import (
    CALIBRATION,
    GENERATORS,
    MOMENTS,
    SAMPLING_SHAPES,
    SCHEMA,
    link_of,
    read_receipt,
    refuse_repeated,
    repetitions_of,
    steps_of,
)
from factorize.numbers.gaussian import mu_by_name
from factorize.numbers.scalars import check_choice, check_type, whole_number
from factorize.privacy import check_own
from factorize.privacy.selection import BestOf
from factorize.training.auditor import Auditor
from factorize.training.released_weights import model_digest
from factorize.training.run_lock import RunLock, real_path
from factorize.training.statement import PrivacyStatement

if TYPE_CHECKING:
    from factorize.format.manifest import CertifiedFactors

_STATED_FIELDS = {"sampling"}.union(CALIBRATION, *SAMPLING_SHAPES.values(), MOMENTS)


class Receipt:
    """A receipt in a file: `make_private` begins it, and the job closes it after its last step.

    While it is open, a lock beside the file keeps other processes out. Before each write the file is compared with the
    last write, so that two receipts of one process cannot go on either.

    Args:
        path: path of the file; links are followed. An open receipt of the same run is continued, and one of a run that
            took no step is replaced.
        others: mu of other runs on the same data, by name; the receipt then also states what all of them guarantee
            together.
        trials: number of runs like this one that were made and released, or `BestOf(mean)` if only the best one of a
            random number of them is seen; the receipt then also states the cost of the search for hyperparameters.
        unpublished: for a run that continues from a checkpoint: nobody has seen what earlier processes released after
            it. Without this, steps that this process takes again refute the receipt; it says nothing of steps that
            another process took again.

    Attributes:
        refused: numbers of contributions that a server refused, by reason; None if nothing is refused.

    Raises:
        InvalidParameter: others that are no mu by name, a mu that is no positive number, or trials that are no number.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        others: Mapping[str, float] | None = None,
        trials: int | BestOf = 1,
        unpublished: bool = False,
    ) -> None:
        self.path = real_path(path)
        check_type("unpublished", unpublished, bool, remedy="give True or False")
        self.unpublished = unpublished
        self.others = mu_by_name(others)
        if not isinstance(trials, BestOf):
            whole_number("trials", trials, remedy="give the number of runs, or BestOf(mean)")
        self.trials = trials
        self.refused: Mapping[str, int] | None = None
        self._document: JsonObject | None = None
        self._statement: PrivacyStatement | None = None
        self._process = secrets.token_hex(32)
        self._lock: RunLock | None = None
        self._on_disk: bytes | None = None  # the content of the file, None before it exists
        self._next = -1  # the step that continues the steps of this process
        self._auditor: Auditor | None = None
        self._elsewhere = False

    @property
    def taken(self) -> int:
        """The number of steps that the receipt has counted, with those of earlier processes."""
        return 0 if self._document is None else steps_of(self._document)

    def begin(
        self,
        statement: PrivacyStatement,
        factors: Sequence[CertifiedFactors],
        auditor: Auditor,
        *,
        generator: str,
        dtype: str,
        commitments: Sequence[str] = (),
    ) -> None:
        """Write the receipt of a run that begins or continues; it is written again before each step.

        Args:
            statement: guarantee of the run.
            factors: factors of C; if squares of gradients have noise of their own, those of both strategies.
            auditor: auditor of the run's batches, which counts its steps.
            generator: generator of the normals.
            dtype: `float32` or `float64`, the type with the digits of the noise, whatever type holds it.
            commitments: commitments to the noise of each of the factors, by which two receipts of one noise are
                recognised.

        Raises:
            InvalidParameter: an argument has another type; the file holds the receipt of another run, a closed one, or
                none; another process writes it; the statement is of other factors, or states other runs than the
                receipt; the auditor lets other batches pass than those that the calibration counts on; or no receipt
                states such a run, because it has no epsilon, for example, or is about users while the auditor counts
                examples.
            OSError: the file cannot be read or written.
        """
        check_type("statement", statement, PrivacyStatement, remedy="give the statement of the run")
        check_type("auditor", auditor, Auditor, remedy="give the auditor of the run's batches")
        check_choice("generator", generator, GENERATORS)
        check_choice("dtype", dtype, ("float32", "float64"))
        check_type("commitments", commitments, Sequence, remedy="give the commitment of each noise in a list")
        check_type("factors", factors, Sequence, remedy="give the factors of C in a list")
        for each in factors:
            certified(each)
        if statement.unit != auditor.unit or (statement.unit == "user") != (statement.users is not None):
            message = (
                f"the statement protects one {statement.unit} (users={statement.users}), but the auditor counts "
                f"{auditor.unit}s; give the auditor users= or unit=, and the statement the number of users"
            )
            raise InvalidParameter(message, field="users")
        _check_factors(statement, factors)
        auditor.check_calibration(statement.calibration, factors[0].steps)
        self._statement = statement = self._with_other_runs(statement)
        kept = self._kept()
        # Any number of ranks may go on in a fixed order; the receipt states that of the first process.
        ranks = statement.ranks if kept is None or statement.sampling != "fixed" else kept["noise"]["ranks"]
        noise = {"generator": generator, "dtype": dtype, "commitments": list(commitments), "ranks": ranks}
        about = _described(statement, factors, noise)
        different = next((name for name in about if kept is not None and kept.get(name) != about[name]), None)
        if different:
            message = (
                f"{self.path} is the receipt of another run ({different} differs); give each run its own file, or "
            )
            way = "continue that run with its own settings (as calibration=) and release of factorize"
            raise InvalidParameter(message + way, field="receipt")
        run = secrets.token_hex(32) if kept is None else kept["run"]
        steps = {"processes": [], "chain": []} if kept is None else dict(kept["steps"])
        said = kept is not None and repetitions_of(kept) != []
        steps |= {"ended": False, "unpublished": steps["unpublished"] if said else self.unpublished}
        self._auditor, self._document = auditor, {**about, "run": run, "model": None, "steps": steps}
        try:
            read_receipt(self._text())
        except (ClaimRefused, MalformedJson) as reason:
            self._document = None
            raise InvalidParameter(f"a receipt cannot describe this run: {reason}", field="receipt") from None
        self._lock = RunLock(self.path, field="receipt")
        auditor.on_step = self._count
        self._write()

    def leave_to_first(self) -> None:
        """Leave the file to the first process of a job of several; here `close` does nothing then."""
        self._elsewhere = True

    def _with_other_runs(self, statement: PrivacyStatement) -> PrivacyStatement:
        """Return a statement with the other runs of this receipt, too; refuse two numbers for one of them."""
        others, trials = {**statement.others, **self.others}, {statement.trials, self.trials} - {1}
        if any(others[name] != mu for name, mu in statement.others.items()) or len(trials) > 1:
            raise InvalidParameter(
                "the statement and the receipt state other runs of one name with different mu, or different numbers of "
                "trials; state each once",
                field="others" if len(trials) < 2 else "trials",
            )
        return replace(statement, others=others, trials=trials.pop() if trials else 1)

    def epsilon_so_far(self, delta: float | None = None) -> float:
        """Return epsilon of the steps that the receipt has counted, for a run that stops here.

        `PrivacyStatement.epsilon_so_far` explains for which stops this holds.

        Raises:
            InvalidParameter: no run has begun, or steps were taken twice.
        """
        if self._statement is None or self._document is None:
            raise self._not_begun()
        refuse_repeated(self._document)
        return self._statement.epsilon_so_far(self.taken, delta)

    def close(self, model: Any = None) -> None:
        """State that the run has ended, with all of its steps or fewer, and which weights it releases.

        All processes of a job may call it; the first one writes.

        Args:
            model: the released weights, whose digest the receipt then states (`factorize.format.weights`): the path of
                a file or a directory, or a module or mapping of arrays in memory.

        Raises:
            InvalidParameter: the run has not begun; or the model is none, has no weights, holds tied tensors or the
                receipt, and the run is still open.
            OSError: the model cannot be read, or the receipt not written.
        """
        if self._elsewhere:
            return
        if self._document is None or self._auditor is None or self._lock is None:
            raise self._not_begun()
        if model is not None:
            self._document["model"] = model_digest(model, receipt=self.path)
        self._document["steps"]["ended"] = True
        self._auditor.on_step = self._refuse_step
        self._write()
        self._lock.release()

    def release(self) -> None:
        """Let another process continue the run; this one may still close it, if no other has gone on."""
        if self._lock is not None:
            self._lock.release()

    def _not_begun(self) -> InvalidParameter:
        if self._elsewhere:
            message = "the first process alone writes {}; ask it there, or statement.epsilon_so_far(steps)"
        else:
            message = "no run has begun for {}; give it to make_private"
        return InvalidParameter(message.format(self.path), field="receipt")

    def _refuse_step(self, step: int) -> None:
        """Refuse a step after the end of the run, which no receipt would count."""
        raise InvalidParameter(
            f"{self.path} states that the run ended after {self.taken} steps, but step {step} is about to be "
            "released; call close() only once, after the last released step",
            field="receipt",
        )

    def _kept(self) -> JsonObject | None:
        """Return the open and undamaged receipt in the file; None where no file, or no step, was written."""
        self._on_disk = self._read()
        if self._on_disk is None:
            return None
        try:
            kept = read_receipt(self._on_disk)
        except (MalformedJson, ClaimRefused) as reason:
            message = f"{self.path} is not a receipt, or is damaged ({reason}); give another path"
            raise InvalidParameter(message, field="receipt") from None
        if kept["steps"]["ended"]:
            raise InvalidParameter(f"{self.path} is the receipt of a finished run; give another path", field="receipt")
        return kept if kept["steps"]["processes"] else None  # nothing is released yet: a notebook's cell runs again

    def _count(self, step: int) -> None:
        """Add a step that is about to be released, counted from 0, to the steps of this process.

        Raises:
            InvalidParameter: steps before it were left out.
        """
        assert self._document is not None
        steps = self._document["steps"]
        processes, chain = steps["processes"], steps["chain"]
        if step == self._next:
            processes[-1][1] = step + 1
        else:
            if step > self.taken:
                raise InvalidParameter(
                    f"{self.path} has {self.taken} steps, but the next is step {step}, which no check would accept; "
                    "begin the receipt before the first step, and continue it with the newest checkpoint",
                    field="receipt",
                )
            if step < self.taken:
                steps["unpublished"] = steps["unpublished"] and self.unpublished
            previous = link_of(self._document["run"], chain[-1], processes[-1]) if chain else None
            chain.append({"process": self._process, "previous": previous})
            processes.append([step, step + 1])
        self._next = step + 1
        self._write()

    def _write(self) -> None:
        """Replace the file as a whole."""
        if self._read() != self._on_disk:
            raise InvalidParameter(
                f"{self.path} has changed since this run wrote it, so another process may have used the same noise; "
                "release no further step, and keep both receipts for whoever checks the run",
                field="receipt",
            )
        text = self._text()
        replace_file(self.path, [text])  # on the disk, so that a machine's failure loses no receipt
        self._on_disk = text

    def _text(self) -> bytes:
        """Return the current receipt."""
        assert self._document is not None and self._auditor is not None
        if self._next > 0 or "counted" not in self._document["steps"]:  # else those of the processes before this one
            counts: JsonObject = dict(self._auditor.counts())
            counted = {"unit": self._auditor.unit, **{name: counts.pop(name) for name in ("number", "contributions")}}
            self._document["steps"] |= {"counted": counted, **counts}
        if self.refused is not None:
            self._document["steps"]["refused"] = dict(self.refused)
        return canonical_json({**self._document, "digest": json_digest(self._document)}) + b"\n"

    def _read(self) -> bytes | None:
        """Return the content of the file, None where there is none."""
        return self.path.read_bytes() if self.path.exists() else None


def refuse_no_receipt(receipt: object) -> None:
    """Refuse what a job cannot write its steps into.

    Raises:
        InvalidParameter: it is no receipt, such as the path of one.
    """
    check_type("receipt", receipt, Receipt, remedy="give factorize.training.receipt.Receipt(path)")


def _check_factors(statement: PrivacyStatement, factors: Sequence[CertifiedFactors]) -> None:
    """Raise InvalidParameter where the noise of a statement was calibrated for other factors than these."""
    own = [statement.digest] if statement.moments is None else list(statement.moments.digests)
    given = [each.digest for each in factors]
    if given != own:
        raise InvalidParameter(
            f"the statement is for the factors {', '.join(own)}, but the receipt would name {', '.join(given)}; give "
            "both the factors that make the noise (of both moments if squares have their own noise)",
            field="factors",
        )
    if statement.steps > factors[0].steps:
        message = f"the statement is of {statement.steps} steps, the factors of {factors[0].steps}; state no more"
        raise InvalidParameter(message, field="steps")
    if statement.moments is None:
        check_own(statement.calibration, factors[0])


def _described(
    statement: PrivacyStatement, factors: Sequence[CertifiedFactors], noise: Mapping[str, Any]
) -> dict[str, object]:
    """Return the receipt's description of a run before its first step, as it is read back."""
    calibration = statement.calibration
    document = (calibration if statement.moments is None else statement.moments).document()
    described = {
        "schema": SCHEMA,
        "epsilon": calibration.epsilon,
        "delta": statement.delta,
        "overflow_delta": statement.overflow_delta,
        "unit": statement.unit,
        "loss": statement.loss,
        "calibration": {name: document[name] for name in _STATED_FIELDS if name in document},
        "factors": [{"digest": each.digest, "spec": each.manifest.spec} for each in factors],
        "data": {"examples": statement.examples, "used": statement.used, "users": statement.users},
        "noise": dict(noise),
        "others": [{"name": name, "mu": mu} for name, mu in statement.composed.items()],
        "together": statement.together,
    }
    if isinstance(statement.trials, BestOf):
        mean, mu = statement.trials.mean, document["mu"]
        mean = mean if type(mean) is int else float(mean)
        described["trials"] = {"mean": mean, "surplus": statement.trials.surplus(mu)}
    return dict(json.loads(canonical_json(described)))
