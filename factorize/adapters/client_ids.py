"""Ids of clients: the one form in which a federated run tells its clients apart."""

import unicodedata

import numpy as np

from factorize.errors import InvalidParameter

MAX_ID_CHARACTERS = 256
"""Of a client's id: the state keeps the ids of all clients, and some are sent by the clients themselves."""

ClientId = str | int


def client_id(value: object) -> ClientId:
    """Return the id of a client in the one form in which clients are told apart.

    Texts that are canonically equivalent in Unicode are one id, their normal form C (NFC). The number 7 is not the text
    "7".

    Raises:
        InvalidParameter: no whole number and no text; or a text that is empty, too long, with spaces around it, or with
            characters that are not printed.
    """
    if isinstance(value, str):
        text = unicodedata.normalize("NFC", value)
        if 0 < len(text) <= MAX_ID_CHARACTERS and text.isprintable() and text == text.strip():
            return text
    elif isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    raise InvalidParameter(
        f"{str(value)[:40]!r} ({type(value).__name__}) is no id of a client; give a whole number, or printable text of "
        f"at most {MAX_ID_CHARACTERS} characters without spaces around it",
        field="client_id",
    )
