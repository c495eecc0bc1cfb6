"""Rounds of federated training with correlated noise: who may take part, the sum of updates, and its one release.

One adapter for each framework drives `FederatedRounds`: admit clients, add their updates, close the round. The unit of
privacy is a client. Only the noise is random, and the guarantee relies on no secrecy of the choice of clients.
docs/federated.md explains the state after a crash.
"""

import logging
import math
import os
import random
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from threading import RLock

import numpy as np
from numpy.typing import ArrayLike

from factorize.adapters.gradients.clipped_sums import check_roundings, flattened, unflattened
from factorize.adapters.rounds.client_ids import EARLY_REASON, ClientId, KnownClients, listed
from factorize.adapters.rounds.method_lock import one_at_a_time
from factorize.adapters.rounds.model_parts import read_parts, refuse_unlisted
from factorize.adapters.rounds.open_round import OpenRound
from factorize.adapters.rounds.state_file import read_state, write_state
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.format.manifest import CertifiedFactors, certified
from factorize.format.receipts import REFUSALS
from factorize.noise.checkpoints import check_stated
from factorize.noise.generator import NoiseGenerator
from factorize.noise.single_use import Secret
from factorize.noise.source import source_of
from factorize.numbers.scalars import whole_number
from factorize.privacy import PrivacyTarget, calibrate
from factorize.privacy.adjacency import Adjacency
from factorize.training.auditor import ParticipationAuditor
from factorize.training.receipt import Receipt, refuse_no_receipt
from factorize.training.run_lock import RunLock, real_path
from factorize.training.statement import PrivacyStatement

Arrays = Sequence[np.ndarray]
_RECEIPT_NOTE = (
    "Warning: there is no receipt, so nobody would notice rounds that are released again with the same noise, for "
    "example from a backup's state or from another path with this seed; give receipt="
)
_VERSION = 2
"""The version of the state in its file."""
_log = logging.getLogger(__name__)


class FederatedRounds(Secret):
    """The server's part of federated training under one guarantee, in a file that survives the server.

    A round: `choose` or `admit`, then `add` for each answer, then `close`. It releases the noisy sum of clipped updates
    over the planned number of clients. That number is fixed: dividing by the number of answers would reveal it, and
    would scale the noise that later rounds rely on.

    Args:
        path: path of the state. If it exists, the run continues: the next round has the noise of its own row.
        factors: factors of C; its participation defines how often and how far apart a client may take part.
        target: the privacy asked for.
        model: arrays of the shapes and types of an update.
        clients: number of clients of the fleet, for the statement; no more ids than these are admitted.
        clients_a_round: the planned number, and the fixed divisor.
        clip_norm: bound on a client's update over all arrays together.
        adjacency: `zero_out` (a client's updates against zeros in every round) or `replace_one`.
        seed: secret; a restarted server must give the same. It is not in the state.
        receipt: a receipt that is written before each release. Without it nobody sees that rounds are released again
            from an old state, and the statement warns of that.

    A client is known by an id that it keeps over restarts, a text or a whole number (`client_id`), and its timer
    belongs to its id. All ids of a run are of one type.

    Attributes:
        calibration: scale and guarantee.
        fleet: the clients that were admitted so far.
        statement: statement of the guarantee, for a log.
        step: number of rounds that were released.
        steps: n; no round is released after them.
        refused: number of refusals by reason. The numbers depend on the clients' data: they are for the operator.

    Raises:
        InvalidParameter: a state of another run, model or seed; a damaged one; or one older than the receipt, or than
            rounds of this process with the same seed and factorization.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        factors: CertifiedFactors,
        target: PrivacyTarget,
        model: Arrays,
        *,
        clients: int,
        clients_a_round: int,
        clip_norm: float,
        adjacency: Adjacency | str = Adjacency.ZERO_OUT,
        seed: int,
        receipt: Receipt | None = None,
    ) -> None:
        held = certified(factors)
        if held.steps is None:
            raise InvalidParameter("factors without a last step have no budget; give a finite n", field="factors")
        self.clients = whole_number("clients", clients)
        remedy = "give as many as clients, or fewer"
        clients_a_round = whole_number("clients_a_round", clients_a_round, high=self.clients, remedy=remedy)
        self._parts = read_parts(model)
        self.calibration = calibrate(
            held.sensitivity, target, clip_norm=clip_norm, divisor=clients_a_round, adjacency=adjacency
        )
        size = sum(math.prod(shape) for shape, _ in self._parts)
        self._auditor = ParticipationAuditor.of(self.calibration, held.steps, unit="user")
        self.path, self.steps, self.clients_a_round = real_path(path), held.steps, clients_a_round
        noise = partial(PrivacyStatement, self.calibration, held.digest, sampling="fixed", unit="user", factors=held)
        notes = () if receipt is not None else (_RECEIPT_NOTE,)
        self.statement = noise(
            steps=self.steps, examples=clients, used=clients, users=clients, loss="per_client", replaced=notes
        )
        self.refused: Counter[str] = Counter()
        self.fleet = KnownClients(self.clients)
        self._open = self._begin_round()
        self._kept: tuple[np.ndarray, np.ndarray] | None = None
        self._broken, self._lock = False, RLock()  # a late update would else join the sum of the next round
        self._written = 0  # the rows of noise that the state on the disk has used
        try:
            self._unlock = weakref.finalize(self, RunLock(self.path, field="path", alone=True).release)
            self._noise = NoiseGenerator(source_of(held), self.calibration, size, seed=seed, precision="float64")
            if self.path.exists():
                self._load()
            else:
                self._noise.restore(0, None)  # refused where rounds of this process have released its rows
            self._begin(receipt, held)
        except BaseException:  # a notebook keeps these frames, and noise and lock would refuse the next rounds
            vars(self).pop("_noise", None)
            if hasattr(self, "_unlock"):
                self._unlock()
            raise

    @property
    def step(self) -> int:
        """The number of rounds that were released."""
        return self._auditor.step

    @property
    def known(self) -> list[ClientId]:
        """The clients that were admitted so far."""
        return list(self.fleet.numbers)

    @property
    def last(self) -> tuple[list[np.ndarray], list[np.ndarray]] | None:
        """The model that the last closed round was given and the mean that it released, for a restarted server."""
        if self._kept is None:
            return None
        model, mean = self._kept
        return unflattened(model, self._parts), unflattened(mean, self._parts)

    def eligible(self, clients: Iterable[object]) -> list[ClientId]:
        """Return the clients that may take part in this round, in an order of their own."""
        return [] if self.step >= self.steps else self._sort_out(clients)[0]

    @one_at_a_time
    def choose(self, clients: Iterable[object]) -> list[ClientId]:
        """Admit the planned number of these clients, at random, and return them; see `admit`.

        Clients that wait for their timers are skipped. After a crash within the round its admitted clients are asked
        again, and as many more as are missing; clients that are gone keep their timers and get no place.
        """
        able, refused = self._sort_out(clients) if self.step < self.steps else ([], [])
        again = [client for client in able if client in self._open.clients]
        others = [client for client in able if client not in self._open.clients]
        missing = min(len(others), self._open.free_places(self.clients_a_round, again))
        for client, reason, why in refused:
            if reason != EARLY_REASON:
                self.refuse(client, reason, why)
        return self.admit([*again, *random.sample(others, missing)])

    @one_at_a_time
    def admit(self, clients: Iterable[object]) -> list[ClientId]:
        """Let clients take part in this round, and return those that may; the others are refused by name.

        The timer of a client starts here, whether or not it answers: its data must not decide whether another client
        gets the place. The state is written before this returns.

        Raises:
            InvalidParticipation: all rounds were taken.
            InvalidParameter: there are so many clients that the clip norm does not pay for the roundings of their sum.
        """
        self._refuse_past()
        before, admitted, asked = len(self._open.clients), list[ClientId](), listed(clients)
        check_roundings(before + len(asked), 1, unit="clients")
        for client in asked:
            able, refused = self._sort_out([client])
            for one in refused:
                self.refuse(*one)
            for known in able:
                self.fleet.admit(known)
                self._open.clients.add(known)
                admitted.append(known)
        if len(self._open.clients) > before:
            self._save()
        return admitted

    @one_at_a_time
    def add(self, client: object, update: Iterable[ArrayLike]) -> bool:
        """Add a client's clipped update to the sum of this round, and return whether it counts.

        A refused update counts as zeros, and the round goes on. Refused are an update of a client that was not
        admitted, a second one, one of other shapes, of complex or whole numbers, or with entries that are not finite.

        Args:
            client: the id under which it was admitted.
            update: the arrays of the update, in the order of the model's.
        """
        known = next(iter(self._sort_out([client])[0]), None)
        refusal = self._open.add(known, update)
        return refusal is None or self.refuse(client if known is None else known, *refusal)

    @one_at_a_time
    def refuse(self, client: object, reason: str, why: str) -> bool:
        """Count and log a refusal that did not reach `admit` or `add`, and return False.

        Args:
            client: the client, for the log.
            reason: reason by which the receipt counts it, one of `factorize.format.receipts.REFUSALS`.
            why: an explanation for the log.

        Raises:
            InvalidParameter: another reason, which no receipt can state.
        """
        if reason not in REFUSALS:
            message = f"reason={reason[:40]!r} is not one that a receipt counts; give one of {', '.join(REFUSALS)}"
            raise InvalidParameter(message, field="reason")
        self.refused[reason] += 1
        _log.warning("round %d refuses client %r: %s", self.step, client, why)
        return False

    @one_at_a_time
    def close(self, model: Arrays | None = None) -> list[np.ndarray]:
        """Return the noisy mean of this round, after the state and the receipt that say so are on the disk.

        A server that is killed before this has released nothing, and takes the round again with other answers. One that
        is killed after it finds the release in `last`, and can neither release the round again nor use its noise twice.

        Args:
            model: the public model that the clients were given; kept for a restart. Zeros by default.

        Raises:
            InvalidParticipation: all rounds were taken.
            InvalidParameter: a model of other shapes. Nothing was released.
        """
        self.check_ahead(model=model)
        total = self._open.total
        before = np.zeros(len(total)) if model is None else flattened(model)
        self._broken = True  # a round that fails before all is written is taken again by a new process
        noisy = (total + self._noise.next()).astype(np.float32)  # further digits would be of the sum alone
        mean = noisy.astype(np.float64) / self.clients_a_round
        self._kept = before, mean
        taken = [self.fleet.numbers[client] for client in self._open.clients]
        self._open = self._begin_round()
        self._auditor.record(np.array(taken, dtype=np.int64))  # `commit` writes the state and then the receipt
        self._broken = False
        return unflattened(mean, self._parts)

    def check_ahead(self, rounds: int = 1, model: Arrays | None = None) -> None:
        """Refuse everything that `close` would refuse, before any client is asked to train.

        Args:
            rounds: number of rounds that are planned.
            model: the model of these rounds.

        Raises:
            InvalidParticipation: more rounds than are left.
            InvalidParameter: a model of other shapes.
        """
        self._refuse_past(whole_number("rounds", rounds, low=0))
        refuse_unlisted([] if model is None else model)
        found, own = [*map(np.shape, [] if model is None else model)], [shape for shape, _ in self._parts]
        if model is not None and found != own:
            raise InvalidParameter(
                f"the model has other shapes ({str(found)[:120]}) than the one that the rounds were created with "
                f"({str(own)[:120]}); give the same arrays in the same order, without counters of batch norm",
                field="model",
            )

    def epsilon_so_far(self, delta: float | None = None) -> float:
        """Return epsilon of the rounds that were released, for a run that stops before its last round.

        `PrivacyStatement.epsilon_so_far` explains for which stops this holds.
        """
        return self.statement.epsilon_so_far(self.step, delta)

    @one_at_a_time
    def stop(self) -> None:
        """Let the run be continued from its state, here or in another process; nothing may be called after this.

        What was released stays released: no other run of this process may begin with the same seed and factorization.
        """
        noise = vars(self).pop("_noise", None)  # its rows stay used
        if noise is not None and self._broken:
            noise.close(self._written)  # the round that was not written is taken again, and nobody has seen its row
        self._broken = True
        self._unlock()
        if self._receipt is not None:
            self._receipt.release()

    def _sort_out(self, clients: Iterable[object]) -> tuple[list[ClientId], list[tuple[object, str, str]]]:
        """Return the ids that may take part in this round, and (client, reason, why) of the others, each once."""
        return self.fleet.sort_out(clients, self._open.clients, self._auditor.refusal)

    def _begin_round(self, lost: Iterable[ClientId] = ()) -> OpenRound:
        return OpenRound([shape for shape, _ in self._parts], self.calibration.clip_norm, lost=lost)

    def _refuse_past(self, rounds: int = 1) -> None:
        if self._broken:
            raise InvalidParticipation(
                "these rounds were stopped, or the last was not written to the file; start again from the file"
            )
        if self.step + rounds > self.steps:
            raise InvalidParticipation(
                f"round {self.step + rounds} is past n={self.steps}, where the whole budget is spent; plan at most "
                f"{self.steps - self.step} more rounds"
            )

    def _begin(self, receipt: Receipt | None, held: CertifiedFactors) -> None:
        """Begin or continue the receipt, so that each round is in the state before it is in the receipt.

        Raises:
            InvalidParameter: the receipt has rounds that the state does not know, or lacks more than the last.
        """
        count_step, self._receipt = None, receipt
        if receipt is not None:
            refuse_no_receipt(receipt)
            if receipt.path == self.path:
                raise InvalidParameter(f"{self.path} is the state; give the receipt a file of its own", field="receipt")
            receipt.refused = self.refused
            receipt.begin(
                self.statement,
                [held],
                self._auditor,
                generator="sfc64",
                dtype="float32",
                commitments=[self._noise.commitment],
            )
            count_step = self._auditor.on_step
            behind = self.step - receipt.taken
            if behind == 1 and count_step is not None:  # the server was killed between the two writes
                count_step(self.step - 1)
            elif behind:
                why = "no receipt would count all rounds" if behind > 0 else "going on would use noise twice"
                newest = "receipt" if behind > 0 else "state"
                message = f"the receipt has {receipt.taken} rounds but the state {self.step}, so {why}"
                raise InvalidParameter(f"{message}; restore the newest {newest}", field="path")

        def commit(step: int) -> None:
            self._save()
            if count_step is not None:
                count_step(step)

        self._auditor.on_step = commit

    def _save(self) -> None:
        """Replace the whole state, which is on the disk when this returns."""
        counted = self._auditor.state_dict()
        arrays = {"last": counted.pop("last"), "count": counted.pop("count")}
        if self._kept is not None:
            arrays["model"], arrays["mean"] = self._kept
        plain = {
            "version": _VERSION,
            "parts": [[list(shape), kind] for shape, kind in self._parts],
            "auditor": counted,
            "noise": self._noise.state_dict(arrays=False),
            **self._fleet(),
            "named_by": self.fleet.named_by,
            "ids": list(self.fleet.numbers),
            "open": list(self._open.clients),
            "refused": dict(self.refused),
        }
        write_state(self.path, plain, arrays)
        self._written = self._noise.step

    def _load(self) -> None:
        """Continue from the state in the file.

        Raises:
            InvalidParameter: the state is damaged, or belongs to another model, seed, scale or factorization.
        """
        kept, arrays = read_state(self.path)
        parts = [(tuple(shape), kind) for shape, kind in kept["parts"]]
        check_stated(kept, {"version": _VERSION, **self._fleet()})
        if parts != self._parts:
            message = (
                f"{self.path} is the state of a model with arrays {str(parts)[:120]}, not {str(self._parts)[:120]}"
            )
            raise InvalidParameter(message, field="model")
        self._auditor.load_state_dict({**kept["auditor"], "last": arrays["last"], "count": arrays["count"]})
        self._noise.load_state_dict(kept["noise"])
        self._written = self._noise.step
        self.fleet = KnownClients(self.clients, kept["ids"], named_by=kept["named_by"])
        self.refused = Counter(kept["refused"])
        self._open = self._begin_round(lost=kept["open"])
        if "mean" in arrays:
            self._kept = arrays["model"], arrays["mean"]

    def _fleet(self) -> dict[str, int]:
        """Return the numbers of the fleet that must not change: the noises of two divisors would not match."""
        return {"clients": self.clients, "clients_a_round": self.clients_a_round}
