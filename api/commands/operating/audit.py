"""`factorize audit`: the audit log checked, line by line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from factorize.api.terminal.exit_codes import VerificationFailed
from factorize.api.terminal.options import Output, StoreUrl
from factorize.api.terminal.output import OutputForm, emit
from factorize.errors import CorruptObject

audit = typer.Typer(name="audit", no_args_is_help=True, help="Check the audit log.")
Folder = Annotated[
    Path | None,
    typer.Option("--audit", metavar="FOLDER", help="Of the log. Default: the setting `audit`.", show_default=False),
]
Expect = Annotated[
    str | None,
    typer.Option(
        "--expect",
        metavar="SEQ:HASH",
        help="A head that an earlier check printed: exit code 4 unless the log still holds it.",
        show_default=False,
    ),
]


@audit.command()
def verify(
    folder: Folder = None, expect: Expect = None, store: StoreUrl = None, output: Output = OutputForm.TEXT
) -> None:
    """Check that no line was changed, moved or taken out since it was written.

    Lines cut off from the end leave a whole chain: write the head down elsewhere now and then, and give it with
    --expect. Services may go on writing meanwhile.
    """
    from factorize.api.auditing.audit_chain import read_head, verify_chain
    from factorize.api.settings import audit_folder, load_settings

    where = folder or audit_folder(load_settings(store=store))
    found = verify_chain(where, None if expect is None else read_head(expect))
    if found.expected is False:
        message = f"{where} does not hold {expect}: lines were cut off, or it is another log"
        raise VerificationFailed(CorruptObject(message))
    lines = [f"lines         {found.lines} in {found.files} files, since {found.since or 'now'}"]
    lines += [f"older         removed: the first line is number {found.first}"] if found.first > 1 else []
    lines += [f"pieces        {found.pieces} of writers that were killed, each named"] if found.pieces else []
    lines += [f"unfinished    {found.unfinished} bytes at the end"] if found.unfinished else []
    document = {
        "folder": str(where),
        "lines": found.lines,
        "files": found.files,
        "first": found.first,
        "since": found.since,
        "pieces": found.pieces,
        "unfinished": found.unfinished,
        "head": str(found.head),
    }
    emit(output, document, "\n".join([*lines, f"head          {found.head}"]))
