"""`factorize audit`: the audit log checked, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from factorize.api.terminal.exit_codes import VerificationFailed
from factorize.api.terminal.options import Database, Output, StoreUrl
from factorize.api.terminal.output import OutputForm, emit
from factorize.errors import CorruptObject, NotFound

audit = typer.Typer(name="audit", no_args_is_help=True, help="Check the audit log.")
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
    expect: Expect = None, database: Database = None, store: StoreUrl = None, output: Output = OutputForm.TEXT
) -> None:
    """Check that no row was changed, moved or taken out since it was written.

    Rows cut off from the end leave a whole log: write the head down elsewhere now and then, and give it with
    --expect. Services may go on writing meanwhile.
    """
    from factorize.api.auditing.audit_log import read_head, verify_log
    from factorize.api.jobs.ledger import Ledger
    from factorize.api.settings import audit_url, load_settings

    head = None if expect is None else read_head(expect)
    url = audit_url(load_settings(database=database, store=store))
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///").partition("?")[0]).is_file():
        raise NotFound(f"there is no ledger {url}, so no audit log; name another with --database")
    with Ledger(url) as ledger:
        found = verify_log(ledger.engine, head)
    if found.expected is False:
        message = f"the audit log does not hold {expect}: rows were cut off, or it is another log"
        raise VerificationFailed(CorruptObject(message))
    document = {"rows": found.rows, "since": found.since, "head": str(found.head)}
    emit(output, document, f"rows          {found.rows}, since {found.since or 'now'}\nhead          {found.head}")
