"""The contract of every door through which noise reaches a training job, and what a door shows to be tested.

A door is what a job calls: the client's generator, torch's, an optimizer, a trainer, a transformation, rounds of a
server. The tests of each environment run every rule on each of their doors (`check`). What does not exist in a door is
said in its `not_here`, with the reason.
"""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from unittest import mock

import numpy as np
import pytest
from checker_files import claim, parts, sealed
from handmade import Handmade
from specs import claimed

from factorize import parse_spec
from factorize.encoding import canonical_json, json_digest
from factorize.errors import FactorizeError
from factorize.factors.factor_file import from_container
from factorize.factors.factorization import Factorization
from factorize.factors.sensitivity import Sensitivity, sensitivity_of
from factorize.format.container import Container
from factorize.noise import single_use
from factorize.noise.engines import RowSums, Streaming
from factorize.noise.normals import keyed
from factorize.participation import read_participation
from factorize.privacy import NOT_LOOKED_AT, Calibration, PrivacyTarget, calibrate
from factorize.structures.toeplitz import ToeplitzMatrix
from factorize.training.auditor import ParticipationAuditor

EPOCHS, BATCHES, SIZE, CLIP = 2, 3, 2, 1.0
N, EXAMPLES = EPOCHS * BATCHES, BATCHES * SIZE
SEED, OTHER_SEED = 0x5EED_C0DE_5EED_C0DE_0123_4567_89AB_CDEF, 0xFEED << 100


def factors(name: str = "one", kind: str = "fixed_epochs") -> Any:
    """Return a strategy by hand for the participation of the contract's jobs; another one has another name.

    The one named "understated" is what anybody can write: C with a certificate of half its sensitivity, every digest
    right.
    """
    apart = {"kind": kind, **({"epochs": EPOCHS} if kind == "fixed_epochs" else {"min_sep": BATCHES})}
    if name == "understated":
        document = {"workload": {"kind": "prefix", "n": N}, "participation": apart, "mechanism": {"kind": "dense"}}
        spec = parse_spec(document)
        manifest, tensors = parts(claimed(spec, ToeplitzMatrix(0.5 ** np.arange(N), N)))
        claim(manifest, manifest["certificate"]["sensitivity"]["value"] / 2)
        return from_container(Container(sealed(manifest, tensors)))
    decay = {"one": 0.5, "another": 0.25}[name]
    stated = Sensitivity(2.0, "exact", "by hand", apart)
    return Handmade(ToeplitzMatrix(decay ** np.arange(N), N), stated, digest=hashlib.sha256(name.encode()).hexdigest())


def calibrated(held: Any, divisor: int | None = None, clip: float = CLIP) -> Calibration:
    """Return the calibration of a strategy of `factors`."""
    stated = Sensitivity.of(held.manifest) if isinstance(held, Factorization) else held.sensitivity
    return calibrate(stated, PrivacyTarget(epsilon=2.0, delta=1e-5), clip_norm=clip, divisor=divisor)


def check_drawn_users(make: Callable[[Any, dict[str, Any]], tuple[Any, Any]]) -> None:
    """See that users who have several examples take part by the law of a secret order, one example each.

    Args:
        make: from a factorization, and options of a job in secret, to its statement and its order.
    """
    users = np.array([0, 0, 1, 1, 2, 3])
    identity = ToeplitzMatrix(np.ones(1), 2 * EPOCHS)
    apart = read_participation({"kind": "fixed_epochs", "epochs": EPOCHS})
    factors = Handmade(identity, sensitivity_of(identity, apart))
    statement, order = make(factors, {"users": users, "sampling": "random_allocation"})
    assert (statement.unit, statement.users, statement.used) == ("user", 4, EXAMPLES)
    for epoch in range(EPOCHS):
        taken = np.concatenate([order[2 * epoch], order[2 * epoch + 1]])
        assert sorted(users[taken]) == [0, 1, 2, 3]


@dataclass(frozen=True, kw_only=True)
class Sampled(Calibration):
    """A calibration whose epsilon counts on sampling."""

    amplified: ClassVar[bool] = True


def of_unseen_batches(make: Callable[..., Any]) -> dict[str, Mistake]:
    """Return the mistake of a sampling that nobody looks at, which one word says on purpose.

    Args:
        make: makes the noise of `factors()`, or an optimizer with it, from a calibration and an auditor.
    """

    def unseen(folder: Path) -> None:
        sampled = Sampled(**vars(calibrated(factors(), SIZE)))
        make(sampled, auditor=NOT_LOOKED_AT).close()
        for given in ("believed", None):
            refused(lambda given=given: make(sampled, auditor=given), "assumes fixed sampling.*checks no batch")  # type: ignore[misc]
        make(sampled)

    row = "a calibration that counts on sampling, where nobody is told of the batches"
    return {row: Mistake("refused", unseen, "not_looked_at")}


class Mistake(NamedTuple):
    """A mistake, and what a door does about it.

    Attributes:
        outcome: `refused`; or `right`, `said` or `believed`, which the act sees for itself.
        act: makes the mistake, in an empty folder.
        words: of the refusal.
        error: type of the refusal, which is ours unless the framework stops first.
    """

    outcome: str
    act: Callable[[Path], Any]
    words: str = ""
    error: type[Exception] = FactorizeError


def of_sums(release: Callable[..., Any]) -> dict[str, Mistake]:
    """Return mistakes of a loop that adds up by itself, with an auditor and without one.

    Args:
        release: makes a generator from a calibration and options, and returns a function that releases a sum, or with
            `mean=True` a mean, whose entries are all one number.
    """
    held = factors()

    def begin(kind: str = "fixed_epochs") -> tuple[ParticipationAuditor, Callable[..., Any]]:
        auditor = ParticipationAuditor.of(calibrated(factors(kind=kind), SIZE), N)
        return auditor, release(held, calibrated(held, SIZE), auditor=auditor)

    def in_two_parts(folder: Path) -> None:
        auditor, run = begin()
        other = release(factors("another"), calibrated(factors("another"), SIZE), auditor=auditor)
        auditor.record(range(SIZE))
        run(0.1)
        other(0.1)

    def unclipped(folder: Path, mean: bool = False) -> None:
        auditor, run = begin()
        auditor.record(range(SIZE), divisor=SIZE)
        run(1.1, mean=mean)

    def uncounted(folder: Path) -> None:
        auditor, run = begin()
        refused(lambda: run(0.1), "recorded 0 steps")
        auditor.record(range(SIZE))
        run(0.1)
        refused(lambda: run(0.1), "a batch was recorded twice")
        auditor.record(range(SIZE, 2 * SIZE))
        auditor.record(range(2 * SIZE, 3 * SIZE))
        run(0.1)

    def believed(folder: Path) -> None:
        run = release(held, calibrated(held))
        for _ in range(2):
            run(100.0 * CLIP)

    return {
        "a sum that clipped gradients of its examples cannot have, beside an auditor": Mistake(
            "refused", unclipped, "clip each example"
        ),
        "a batch whose noise is drawn twice, or not at all, beside an auditor": Mistake(
            "refused", uncounted, "recorded 3 steps"
        ),
        "a batch that two noises release, as of two parts of the parameters, beside an auditor": Mistake(
            "refused", in_two_parts, "was released with another noise"
        ),
        "a step that is divided by another number than the calibration's, beside an auditor": Mistake(
            "refused", lambda folder: begin()[0].record(range(SIZE), divisor=1), "for which the noise is calibrated"
        ),
        "an auditor of another participation": Mistake("refused", lambda folder: begin("min_sep"), "does not cover"),
        "an example whose gradient is not finite": Mistake(
            "refused", lambda folder: release(held, calibrated(held))(np.nan), "NaN or infinite"
        ),
        "sums of any size, and batches in any order, without an auditor": Mistake("believed", believed),
    }


def of_going_back(door: Door, load: Callable[[Any, Any], Any]) -> dict[str, Mistake]:
    """Return the mistake of a run that goes back to a checkpoint, as after a loss that grew, to go on at another rate.

    Args:
        door: that the run is of.
        load: gives a state to a run.
    """

    def act(folder: Path) -> None:
        run = door.begin(folder)
        door.step(run)
        state = door.saved(run)
        door.step(run)
        load(run, state)

    row = "going back to an earlier checkpoint in one process"
    return {row: Mistake("refused", act, "have used their noise")}


RESTARTED = (
    "a restart from a checkpoint on the same data in another order, as after a shuffle or a split without a seed"
)
"""The row of the table for a data set whose indices name other examples than before."""


def of_looks(door: Door) -> dict[str, Mistake]:
    """Return the mistake of a loop that logs gradients before they have noise, clips by their norm, or sets a rate."""

    def look(folder: Path) -> None:
        run, sizes = door.begin(folder), list[float]()
        step, parameters = run.optimizer.step, run.optimizer.params

        def looking() -> object:
            sizes.append(max(float(p.grad.abs().max()) for p in parameters))
            return step()

        run.optimizer.step = looking
        released = np.frombuffer(door.step(run), np.float32)
        assert sizes and not any(sizes) and np.count_nonzero(released) == len(released)

    return {"a look at gradients before they have noise, such as a norm that sets the rate": Mistake("right", look)}


REORDERED = "data whose order changes from one pass to the next, as by a shuffle after each epoch"
REORDERED_WITHIN = "data whose order changes within a pass"


class Door(ABC):
    """A door: how a job begins, steps and goes on, and mistakes that it may make there.

    Attributes:
        name: as the table of docs/adapters.md has it.
        not_here: rules that this door has nothing for, and why; a reason that begins with "right" says that what others
            refuse is right here.
        goes_on: whether a job may take its step rightly after it was refused.
    """

    name: ClassVar[str]
    not_here: ClassVar[dict[str, str]] = {}
    goes_on: ClassVar[bool] = True

    @abstractmethod
    def begin(self, folder: Path, *, seed: int = SEED, name: str = "one", clip: float = CLIP, state: Any = None) -> Any:
        """Return a run of `factors(name)`: from the first step, or from a state of `saved`."""

    @abstractmethod
    def step(self, run: Any) -> bytes:
        """Take the next step as a job should, and return the bits that it releases."""

    @abstractmethod
    def taken(self, run: Any) -> int:
        """Return how many rows of noise were spent."""

    @abstractmethod
    def saved(self, run: Any) -> Any:
        """Return what a checkpoint keeps."""

    @abstractmethod
    def secrets(self, run: Any) -> list[Any]:
        """Return the objects that hold the key."""

    @abstractmethod
    def end(self, run: Any) -> None:
        """Let another run of this process make the same noise."""

    def not_real(self, run: Any) -> None:
        """Give complex numbers where real ones are asked for."""
        raise NotImplementedError

    def wrong_rows(self, run: Any) -> None:
        """Give gradients that are not those of the batch's examples, or sums of other shapes."""
        raise NotImplementedError

    def mixing_loss(self, run: Any) -> None:
        """Train with a loss in which an example changes the gradients of others."""
        raise NotImplementedError

    def partial_optimizer(self, run: Any) -> None:
        """Leave a part of the trained parameters without noise."""
        raise NotImplementedError

    def narrow(self, run: Any) -> None:
        """Round sums to half precision before the noise is added."""
        raise NotImplementedError

    def early(self, run: Any) -> None:
        """Have examples take part again before the participation allows it, in the step after their first."""
        raise NotImplementedError

    def more(self) -> dict[str, Mistake]:
        """Return what else the table of docs/adapters.md says of this door, by row."""
        return {}

    def mistaken(self, run: Any, name: str, words: str) -> bytes | None:
        """See that a mistake is refused before anything is spent, and return what the step then releases.

        None where the job has to begin again.
        """
        refused(lambda: getattr(self, name)(run), words)
        assert self.taken(run) == 0, "nothing was spent"
        return self.step(run) if self.goes_on else None


def take_a_step(receipt: Path) -> None:
    """Let an open receipt without steps state one."""
    document = json.loads(receipt.read_bytes())
    document["steps"] |= {"processes": [[0, 1]], "chain": [{"process": "1" * 64, "previous": None}]}
    del document["digest"]
    receipt.write_bytes(canonical_json({**document, "digest": json_digest(document)}))


def check(door: Door, rule: str, folder: Path) -> None:
    """Run one rule on a door, or see that the door says why it has nothing for it."""
    row, hold = RULES[rule]
    reason, own = door.not_here.get(rule), getattr(type(door), rule, None)
    if reason is None:
        hold(door, folder)
        expected = "right" if rule in RIGHT else "refused"
    else:
        assert len(reason.split()) > 3 and own in (None, getattr(Door, rule, None)), f"{door.name}: {rule}"
        expected = "right" if reason.startswith("right") else "-"
    assert cells().get((row, door.name), "-") == expected


def check_more(door: Door, folder: Path) -> None:
    """Run the mistakes that a door names itself, and compare what the table says of it in all other rows."""
    found, contract = door.more(), {row for row, _ in RULES.values()}
    for number, mistake in enumerate(found.values()):
        (own := folder / str(number)).mkdir()
        with mock.patch.object(single_use, "_ROWS", {}):  # as in a process of its own
            if mistake.outcome == "refused":
                refused(lambda act=mistake.act, own=own: act(own), mistake.words, mistake.error)  # type: ignore[misc]
            else:
                mistake.act(own)
    table = {row: cell for (row, name), cell in cells().items() if name == door.name and row not in contract}
    assert table == {row: found[row].outcome if row in found else "-" for row in table} and found.keys() <= table.keys()


def refused(act: Callable[[], Any], words: str, error: type[Exception] = FactorizeError) -> None:
    """See that an act is refused by an error, with a sentence that names the fault and a way out."""
    with pytest.raises(error) as caught:
        act()
    told = str(caught.value)
    assert re.search(words, told), told
    assert re.search(r"[;:,] \w+", told), f"no way out: {told}"


def _bits(door: Door, folder: Path, steps: int = N) -> list[bytes]:
    """Return what an undisturbed run releases."""
    run = door.begin(folder)
    found = [door.step(run) for _ in range(steps)]
    door.end(run)
    return found


def _state(door: Door, folder: Path, steps: int = 3) -> Any:
    run = door.begin(folder)
    for _ in range(steps):
        door.step(run)
    state = door.saved(run)
    door.end(run)
    return state


def _other_seed(door: Door, folder: Path) -> None:
    state = _state(door, folder / "one")
    refused(lambda: door.step(door.begin(folder / "two", seed=OTHER_SEED, state=state)), "seed|commitment")


def _other_factorization(door: Door, folder: Path) -> None:
    state = _state(door, folder / "one")
    words = "factorization|commitment|digest"
    refused(lambda: door.step(door.begin(folder / "two", name="another", state=state)), words)


def _understated(door: Door, folder: Path) -> None:
    refused(lambda: door.begin(folder, name="understated"), "too small; do not use this file")


def _other_scale(door: Door, folder: Path) -> None:
    state = _state(door, folder / "one")
    refused(lambda: door.step(door.begin(folder / "two", clip=2 * CLIP, state=state)), "sigma|scale|clip")


def _fork(door: Door, folder: Path) -> None:
    run = door.begin(folder)
    with mock.patch("os.getpid", return_value=1):
        refused(lambda: door.step(run), "fork")
    door.end(run)


def _copy(door: Door, folder: Path) -> None:
    run = door.begin(folder / "one")
    first = door.step(run)
    for secret in door.secrets(run):
        for act in (copy.copy, copy.deepcopy, pickle.dumps):
            refused(lambda act=act, secret=secret: act(secret), "key|seed|same noise")  # type: ignore[misc]
    after = door.step(run)
    door.end(run)
    assert [first, after] == _bits(door, folder / "two", 2)


def _past_n(door: Door, folder: Path) -> None:
    run = door.begin(folder)
    for _ in range(N):
        door.step(run)
    refused(lambda: door.step(run), rf"past n={N}|all {N} steps are taken")
    assert door.taken(run) == N
    door.end(run)


def _resumed(door: Door, folder: Path) -> None:
    state = _state(door, folder / "one")
    run = door.begin(folder / "two", state=state)
    again = [door.step(run) for _ in range(N - 3)]
    door.end(run)
    assert again == _bits(door, folder / "three")[3:]


def _state_without_key(door: Door, folder: Path) -> None:
    state = _state(door, folder)
    kept = [state, repr(state).encode(), pickle.dumps(state)] if not isinstance(state, bytes) else [state]
    text = b"".join(part for part in kept if isinstance(part, bytes))
    keys = [keyed(generator, SEED, factors().digest) for generator in ("sfc64", "shake128", "torch", "jax")]
    numbers = [SEED.to_bytes(16, "little"), SEED.to_bytes(16, "big"), str(SEED).encode(), f"{SEED:x}".encode()]
    for key in keys:
        numbers += [key, key.hex().encode(), key[:8], repr(key)[2:-1].encode()]
    assert len(text) > 50 and not any(number in text for number in numbers)


def _twin(door: Door, folder: Path) -> None:
    run = door.begin(folder / "one")
    door.step(run)
    refused(lambda: door.begin(folder / "two"), "open in this process")
    del run  # as where a function ends that has trained: its noise stays used
    again = list[Any]()
    refused(lambda: again.append(door.begin(folder / "two")) or door.step(again[0]), "was used before|used their noise")
    if not again:
        return  # the rounds of a server release each row, so they have no way out but another seed
    door.end(again[0])  # the way out, where nobody has seen what was released
    run = door.begin(folder / "three")
    door.step(run)
    door.end(run)


@contextmanager
def ended_on_the_way() -> Iterator[None]:
    """Have Ctrl-C end what takes a row of noise, where the row is there and the step is not."""

    def ended(kind: type) -> Any:
        whole: Any = kind.step  # type: ignore[attr-defined]

        def step(*arguments: Any) -> None:
            whole(*arguments)
            raise KeyboardInterrupt

        return mock.patch.object(kind, "step", step)

    with ended(Streaming), ended(RowSums), pytest.raises(KeyboardInterrupt):
        yield


def _ended(door: Door, folder: Path) -> None:
    """See that the run takes no step more, and saves then nothing, or the state of the step before."""
    run = door.begin(folder / "one")
    first = door.step(run)
    with ended_on_the_way():
        door.step(run)
    refused(lambda: door.step(run), "not finished|not taken|zero_grad|start again")
    state = None
    with suppress(FactorizeError):
        state = door.saved(run)
    door.end(run)
    if state is not None:
        run = door.begin(folder / "two", state=state)
        again = [door.step(run) for _ in range(N - 1)]
        door.end(run)
        assert [first, *again] == _bits(door, folder / "three")


def _short_seed(door: Door, folder: Path) -> None:
    refused(lambda: door.begin(folder, seed=2**64 - 1), "seed")


def _early(door: Door, folder: Path) -> None:
    run = door.begin(folder)
    door.step(run)
    refused(lambda: door.early(run), "participation|early|apart")
    assert door.taken(run) == 1
    door.end(run)


def _mistake(name: str, words: str) -> Callable[[Door, Path], None]:
    def rule(door: Door, folder: Path) -> None:
        run = door.begin(folder / "one")
        found = door.mistaken(run, name, words)
        door.end(run)
        if found is not None:
            assert found == _bits(door, folder / "two", 1)[0], "nothing is lost"

    return rule


RULES: dict[str, tuple[str, Callable[[Door, Path], None]]] = {
    "other_seed": ("a checkpoint of another seed", _other_seed),
    "other_factorization": ("a checkpoint of another factorization", _other_factorization),
    "understated": ("factors whose certificate states less than the sensitivity of C", _understated),
    "other_scale": ("a checkpoint of another clip norm, and so of another scale", _other_scale),
    "fork": ("a fork of the process after the noise was made", _fork),
    "copy": ("a copy or a pickle of what holds the key", _copy),
    "twin": (
        "a second generator of one noise in a process, as a cell that runs twice or the trials of a search make",
        _twin,
    ),
    "ended": ("a step that Ctrl-C, or an error, ends on the way, and another one after it", _ended),
    "short_seed": ("a secret seed below 2^64", _short_seed),
    "past_n": ("a step after the last", _past_n),
    "not_real": ("complex numbers", _mistake("not_real", "complex|real|floating")),
    "narrow": ("sums rounded to half precision before the noise", _mistake("narrow", "float16|half")),
    "wrong_rows": (
        "gradients whose rows are not the batch's examples, or of other shapes",
        _mistake("wrong_rows", "shape|rows|examples|other parameters"),
    ),
    "mixing_loss": ("a loss in which an example changes the gradients of others", _mistake("mixing_loss", "example")),
    "partial_optimizer": ("trained parameters without noise", _mistake("partial_optimizer", "leaves out|masked")),
    "early": ("examples that come back before the participation allows it", _early),
    "resumed": ("a restart from a checkpoint", _resumed),
    "state_without_key": ("a checkpoint that somebody reads", _state_without_key),
}
"""The rules by name: the row of the table in docs/adapters.md, and what has to hold."""
RIGHT = ("resumed", "state_without_key")


def cells() -> dict[tuple[str, str], str]:
    """Return the table of docs/adapters.md, by row and column."""
    page = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text().split("## Mistakes", 1)[1]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    return {(row[0], door): cell for row in table[2:] for door, cell in zip(table[0][1:], row[1:], strict=True)}
