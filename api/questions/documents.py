"""Documents that answer questions, as Python hands them out: plain data, which prints as on the command line."""

from collections.abc import Iterator
from html import escape

from factorize.api.questions.advice import advice_text
from factorize.api.questions.comparison import text
from factorize.api.questions.job_code import FRAMEWORKS
from factorize.encoding import JsonObject


class Document:
    """An answer as plain data, shown as the command line prints it.

    Attributes:
        document: the whole (docs/cli.md has its fields).
    """

    def __init__(self, document: JsonObject) -> None:
        self.document = document

    def _repr_html_(self) -> str:
        """The same in a notebook."""
        return f"<pre>{escape(repr(self))}</pre>"


class ComparisonTable(Document):
    """Every mechanism that fits a spec side by side, best first; HTTP and the command line have the same document."""

    @property
    def rows(self) -> list[JsonObject]:
        """One for each mechanism, and for each sampling that it counts on, sorted by the loss."""
        return list(self.document["rows"])

    @property
    def recommended(self) -> JsonObject | None:
        """The row to take for the memory that was given, or None where no row fits."""
        chosen = self.document["recommendation"]
        return None if not chosen else dict(self.document["rows"][chosen["row"]])

    @property
    def reason(self) -> str:
        """Why that row is recommended; empty where none is."""
        chosen = self.document["recommendation"]
        return str(chosen["reason"]) if chosen else ""

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self.document["rows"])

    def __iter__(self) -> Iterator[JsonObject]:
        """The rows, best first."""
        return iter(self.rows)

    def __repr__(self) -> str:
        """The table as the command line prints it."""
        return text(self.document)


class Advice(Document):
    """One mechanism for a training job, with all that a job needs to use it."""

    @property
    def mechanism(self) -> str:
        """Name and parameters."""
        return str(self.document["mechanism"])

    @property
    def sampling(self) -> str:
        """The scheme that the noise counts on; `fixed` for none."""
        return str(self.document["sampling"])

    @property
    def spec(self) -> JsonObject:
        """The spec, as `factorize.solve` takes it."""
        return dict(self.document["spec"])

    @property
    def sigma(self) -> JsonObject:
        """Standard deviations per entry of Z: `sums`, and `means` with `divisor`, at `clip_norm`."""
        return dict(self.document["sigma"])

    @property
    def loader(self) -> str:
        """The duties of the training job's loader."""
        return str(self.document["loader"])

    @property
    def code(self) -> dict[str, str]:
        """Lines that use it: `torch`, `jax`, `numpy`."""
        return dict(self.document["code"])

    def __repr__(self) -> str:
        """The answer as the command line prints it."""
        return advice_text(self.document, FRAMEWORKS)

    def _repr_html_(self) -> str:
        """The answer in a notebook, the code folded."""
        text = f"<pre>{escape(advice_text(self.document, ()))}</pre>"
        return text + "".join(
            f"<details><summary>{escape(name)}</summary><pre>{escape(code)}</pre></details>"
            for name, code in self.code.items()
        )
