"""Ids of clients: the one form in which a federated run tells its clients apart, and the clients that it knows."""

import unicodedata
from collections.abc import Callable, Collection, Iterable

import numpy as np

from factorize.errors import InvalidParameter

MAX_ID_CHARACTERS = 256
"""The most characters of a client's id: the state keeps the ids of all clients, and clients send some themselves."""

EARLY_REASON = "too early"
"""The reason for refusing a client whose timer has not run out, which is no fault of the client."""
_FULL_FLEET = (
    "clients={clients}, and as many ids were admitted: a client that comes back under another id would take part more "
    "often than it may; give each an id that it keeps (client_id=), or begin a run with all clients that may come"
)
ClientId = str | int


def client_id(value: object) -> ClientId:
    """Return the id of a client in the one form in which clients are told apart.

    Texts that are canonically equivalent in Unicode are one id, their normal form C (NFC). The number 7 is not the text
    "7".

    Raises:
        InvalidParameter: the value is no whole number and no text; or a text that is empty, too long, with spaces
            around it, or with characters that are not printed.
    """
    if isinstance(value, str):
        text = str(unicodedata.normalize("NFC", value))  # numpy's texts are of another type
        if 0 < len(text) <= MAX_ID_CHARACTERS and text.isprintable() and text == text.strip():
            return text
    elif isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    raise InvalidParameter(
        f"{str(value)[:40]!r} ({type(value).__name__}) is not a client id; give a whole number, or printable text of "
        f"at most {MAX_ID_CHARACTERS} characters without spaces around it",
        field="client_id",
    )


def listed(clients: Iterable[object]) -> list[object]:
    """Return clients as a list; raise InvalidParameter for one client, also for a text, which has characters."""
    if isinstance(clients, str | bytes) or not isinstance(clients, Iterable):
        kind = "text" if isinstance(clients, str | bytes) else type(clients).__name__
        raise InvalidParameter(f"{str(clients)[:40]!r} is one {kind}; give a list of client ids", field="client_id")
    return list(clients)


class KnownClients:
    """The clients of one run: each has the number of its first admission, by which its timer is kept.

    Args:
        most: the most clients that the run may have.
        ids: the ids of its clients, in the order of their numbers.
        named_by: name of the id by which they are known.

    Attributes:
        numbers: the number of each client by its id.
    """

    def __init__(self, most: int, ids: Iterable[ClientId] = (), *, named_by: str | None = None) -> None:
        self.most, self.named_by = most, named_by
        self.numbers: dict[ClientId, int] = {client: number for number, client in enumerate(ids)}

    def admit(self, known: ClientId) -> None:
        """Give a client its number, if it has none."""
        self.numbers.setdefault(known, len(self.numbers))

    def name(self, by: str) -> None:
        """Set the name of the id by which clients are known, which the run keeps.

        Raises:
            InvalidParameter: the run knows its clients by another id, so that its timers would not hold for these.
        """
        if self.numbers and self.named_by != by:
            message = f"the run began with client ids from {self.named_by!r}, not {by!r}; give client_id= as then"
            raise InvalidParameter(message, field="client_id")
        self.named_by = by

    def sort_out(
        self, clients: Iterable[object], asked: Collection[ClientId], timer: Callable[[int], str | None]
    ) -> tuple[list[ClientId], list[tuple[object, str, str]]]:
        """Return the ids that may take part in a round, and (client, reason, why) of the others, each once.

        Args:
            clients: the clients that are there.
            asked: clients that were already admitted to the round.
            timer: a function that returns why a number has to wait, or None.
        """
        able, refused = set[ClientId](), list[tuple[object, str, str]]()
        kind = next((type(known) for known in self.numbers), None)
        for client in listed(clients):
            try:
                known = client_id(client)
            except InvalidParameter as reason:
                refused.append((client, "no client id", str(reason)))
                continue
            early = timer(self.numbers[known]) if known in self.numbers else None
            if known in asked or known in able:
                able.add(known)
            elif early:
                refused.append((known, EARLY_REASON, early))
            elif known in self.numbers:
                able.add(known)
            elif kind not in (None, type(known)):
                why = f"ids of this run are {kind.__name__}, not {type(known).__name__}: 7 and '7' are two clients"
                refused.append((known, "another type of id", why))
            elif len(self.numbers) >= self.most:
                refused.append((known, "fleet is full", _FULL_FLEET.format(clients=self.most)))
            else:
                able.add(known)
        return sorted(able, key=lambda one: (isinstance(one, str), one)), refused
