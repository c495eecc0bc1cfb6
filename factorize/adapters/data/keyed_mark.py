"""Marks of data in checkpoints, by which a restart tells whether its indices still name the same examples."""

import hmac
from collections.abc import Mapping

from factorize.errors import InvalidParameter


def keyed_mark(secret: int, told: bytes) -> str:
    """Return a hash of what tells data apart, which reveals no example without the secret."""
    return hmac.new(f"factorize data {secret}".encode(), told, "sha256").hexdigest()


def refuse_other_data(mark: str | None, checkpoint: Mapping[str, object]) -> None:
    """Refuse a checkpoint of a run on other data, or on the same in another order.

    Args:
        mark: mark of the present data; None where nobody knows them.
        checkpoint: a state that holds a mark as `data`, or none.

    Raises:
        InvalidParameter: the marks differ.
    """
    if mark not in (None, checkpoint.get("data", mark)):
        raise InvalidParameter(
            "an index of the data set names another example than when the checkpoint was made, so examples would take "
            "part more often than the participation allows; give a split or a shuffle the seed of then, and files "
            "their order. If the examples are the same, and only read in another way, leave the checkpoint's 'data' "
            "out",
            field="data",
        )
