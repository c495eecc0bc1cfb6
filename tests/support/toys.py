"""Toys: one of each kind that docs/extending.md says how to add, added to a copy of the packages by its steps.

New files lie below `tests/toys`, in the rooms where they go; what is written into files that there are is stated here.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
NEW = ROOT / "tests/toys"
PACKAGES = ("factorize", "solvers", "api")
UNFINISHED = shutil.ignore_patterns("*.tmp.*", "*.pyc.*")
"""Compiled code that another process is writing, which is not copied."""


@dataclass(frozen=True)
class Change:
    """Text that is put before a text which a file holds once.

    Attributes:
        path: of the file.
        before: what follows.
        text: what is new.
    """

    path: str
    before: str
    text: str

    def apply(self, tree: Path) -> None:
        given = (tree / self.path).read_text()
        assert given.count(self.before) == 1, f"{self.path} holds {self.before!r} {given.count(self.before)} times"
        (tree / self.path).write_text(given.replace(self.before, self.text + self.before))


@dataclass(frozen=True)
class Toy:
    """The changes and files that add one kind.

    Attributes:
        files: new ones.
        written: places in files that there are: a class, a function or a rule.
        entries: of registers: one line each, and the import that it needs.
    """

    files: tuple[str, ...]
    written: tuple[Change, ...]
    entries: tuple[tuple[Change, ...], ...]

    def add_to(self, tree: Path) -> None:
        for name in self.files:
            shutil.copyfile(NEW / name, tree / name)
        for change in (*self.written, *(change for entry in self.entries for change in entry)):
            change.apply(tree)

    @property
    def counts(self) -> tuple[int, int]:
        """Return how many files, new ones and those that more than an entry is written into, and how many entries."""
        return len({*self.files, *(change.path for change in self.written)}), len(self.entries)


WORKLOADS, EXACT_WORKLOADS = "factorize/workloads/__init__.py", "factorize/checker/spec/workloads.py"
RULES, EXACT_PARTICIPATIONS = "factorize/factors/sensitivity.py", "factorize/checker/participation.py"
TENSORS, LAYOUTS = "factorize/format/tensors.py", "factorize/structures/layouts.py"
SOURCES, READINGS = "factorize/noise/source.py", "factorize/checker/structures/__init__.py"
ROUTERS, COMMANDS = "api/http/app.py", "api/commands/application.py"
SAMPLINGS, RECEIPTS = "factorize/samplings/__init__.py", "factorize/format/receipts.py"
EXACT_RECEIPTS = "factorize/checker/receipt.py"
MECHANISMS, SOLVERS, EXACT_MECHANISMS = (
    "factorize/spec/mechanisms.py",
    "solvers/register.py",
    "factorize/checker/mechanism.py",
)

TOYS = {
    "workload": Toy(
        ("factorize/workloads/two_decays.py",),
        (
            Change(
                EXACT_WORKLOADS,
                "KINDS = (*PROGRAMS",
                """@defines("two_decays")
def _two_decays(document: Document) -> Program:
    first, second = Fraction(document["first"]), Fraction(document["second"])
    return Program([(0, {0: second, X: _ONE}), (1, {1: first, 0: _ONE})], 1)


""",
            ),
        ),
        (
            (
                Change(
                    WORKLOADS,
                    "from factorize.workloads.weight_decay",
                    "from factorize.workloads.two_decays import TwoDecays as TwoDecays\n",
                ),
            ),
        ),
    ),
    "participation": Toy(
        (),
        (
            Change(
                "factorize/participation.py",
                "AnyParticipation = ",
                '''class Halves(Participation):
    """Everyone takes part twice, n / 2 steps apart."""

    kind: Literal["halves"]

    def canonical(self, n: int) -> Halves:
        """Check that n is even."""
        if n % 2:
            raise InvalidParticipation(f"n={n} has no halves; use n={n + 1}", field="/participation/kind")
        return self

    def spread(self, n: int) -> Spread:
        """Two steps."""
        return Spread(n // 2, 2, "n / 2")

    def patterns(self, n: int) -> np.ndarray:
        """Each step of the first half, with its own of the second."""
        import numpy as np

        return np.arange(n).reshape(2, n // 2).T

    def violation(self, n: int, gaps: np.ndarray, most: int) -> str | None:
        """Any other distance."""
        return "two steps of one example are not n / 2 apart" if (gaps != n // 2).any() else None


''',
            ),
            Change("factorize/participation.py", " | MinSep\n", " | Halves"),
            Change(RULES, ", MinSep)\n", ", Halves"),
            Change(RULES, "MinSep, Participation, Single\n", "Halves, "),
            Change(
                EXACT_PARTICIPATIONS,
                "KINDS: dict",
                """def _halves(_given: Document, n: int | None) -> Allowed | None:
    return Allowed(n // 2, 2, True) if n is not None and n % 2 == 0 else None


""",
            ),
            Change(EXACT_PARTICIPATIONS, '    "single": (lambda', '    "halves": (_halves, {"kind"}),\n'),
        ),
        (),
    ),
    "structure": Toy(
        (
            "factorize/structures/bidiagonal.py",
            "factorize/noise/recurrences/bidiagonal.py",
            "factorize/checker/structures/bidiagonal.py",
        ),
        (
            Change(
                TENSORS,
                '@stored("dense"',
                """@stored("bidiagonal", {"diagonal": ("n",), "below": ("n",)})
def _bidiagonal(parts: Parts, n: int | None) -> None:
    _check_positive(parts["diagonal"])
    if parts["below"][0] != 0:
        raise InvalidStrategy("an entry stands before the first column")


""",
            ),
        ),
        (
            (
                Change(
                    LAYOUTS,
                    "from factorize.structures.toeplitz ",
                    "from factorize.structures.bidiagonal import BidiagonalMatrix\n",
                ),
                Change(LAYOUTS, "    SCALED: lambda", '    "bidiagonal": BidiagonalMatrix.of_tensors,\n'),
            ),
            (
                Change(
                    SOURCES,
                    "from factorize.noise.recurrences.buffered ",
                    "from factorize.noise.recurrences.bidiagonal import BidiagonalRecurrence\n",
                ),
                Change(SOURCES, '    "banded": ', '    "bidiagonal": BidiagonalRecurrence,\n'),
            ),
            (
                Change(
                    READINGS,
                    "from factorize.checker.structures.toeplitz ",
                    "from factorize.checker.structures.bidiagonal import BidiagonalReading\n",
                ),
                Change(READINGS, '    "banded": ', '    "bidiagonal": BidiagonalReading,\n'),
            ),
        ),
    ),
    "mechanism": Toy(
        ("solvers/neighbours.py",),
        (
            Change(
                MECHANISMS,
                "if TYPE_CHECKING:\n    AnyMechanism",
                '''class Neighbours(Mechanism):
    """Each step's noise takes a share of the next one's."""

    kind: Literal["neighbours"]
    share: Fraction


''',
            ),
            Change(
                EXACT_MECHANISMS,
                "_RULES: dict",
                """def _neighbours(named: Named) -> str:
    share, below = named.mechanism["share"], named.parts.get("below")
    if named.strategy.structure != "bidiagonal" or below is None or (below[1:] != share).any():
        raise Contradiction("its second diagonal is not the share")
    return "its second diagonal is the share"


""",
            ),
            Change(EXACT_MECHANISMS, '"anti_pgd", "identity", "tree"', '"neighbours", '),
            Change(EXACT_MECHANISMS, '    "dense": _any,', '    "neighbours": _neighbours,\n'),
        ),
        (
            (
                Change(
                    SOLVERS,
                    '    "semidefinite": (',
                    '    "neighbours": (_entry("neighbours"),),\n',
                ),
            ),
        ),
    ),
    "solver": Toy(
        ("solvers/single/unit.py",),
        (),
        (
            (
                Change(
                    SOLVERS,
                    '        _entry("single.few_states", dual=True),',
                    '        _entry("single.unit", dual=True),\n',
                ),
            ),
        ),
    ),
    "rule": Toy(
        (),
        (
            Change(
                EXACT_RECEIPTS,
                "_PARTS = (",
                """ENDED = "receipt.ended"


def _check_ended(report: Report, receipt: _Document, files: _Files) -> None:
    report.stated += (ENDED,)
    report.require(receipt["steps"]["ended"], "the run has ended", "the run goes on", of=ENDED)


""",
            ),
            Change(EXACT_RECEIPTS, "    (TOGETHER, _check_together),", "    (ENDED, _check_ended),\n"),
        ),
        (),
    ),
    "adapter": Toy(("factorize/adapters/lists.py",), (), ()),
    "sampling": Toy(
        ("factorize/samplings/coin.py",),
        (
            Change(
                "factorize/checker/samplings.py",
                '    "cyclic_poisson": ',
                '    "coin": SecretOrder("groups", "compositions", lambda b, turns: Allowed(b, turns, False), _prove_losses),\n',
            ),
        ),
        (
            (
                Change(
                    SAMPLINGS,
                    "from factorize.samplings.cyclic_poisson ",
                    "from factorize.samplings.coin import CoinSampling\n",
                ),
                Change(SAMPLINGS, "        PoissonSampling(),", "        CoinSampling(),\n"),
            ),
            (Change(RECEIPTS, '    "cyclic_poisson": ', '    "coin": _GROUPS,\n'),),
        ),
    ),
    "route": Toy(
        ("api/http/mechanism_routes.py",),
        (),
        (
            (
                Change(
                    ROUTERS,
                    "from factorize.api.http.pending ",
                    "from factorize.api.http.mechanism_routes import router as mechanisms\n",
                ),
                Change(ROUTERS, '    "questions": questions.router,', '    "mechanisms": mechanisms,\n'),
            ),
        ),
    ),
    "command": Toy(
        ("api/commands/mechanisms_command.py",),
        (),
        ((Change(COMMANDS, '    "jobs": "', '    "mechanisms": "mechanisms_command",\n'),),),
    ),
}


def copy_packages(tree: Path) -> None:
    """Copy our packages with their compiled code, which is valid as long as times of files are kept."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tree / package, symlinks=True, ignore=UNFINISHED)
