"""`factorize estimate`: what a spec would take here, until its result is proved and stored; nothing is solved."""

from __future__ import annotations

from contextlib import suppress

from factorize.api.terminal.options import Output, SpecText, StoreUrl
from factorize.api.terminal.output import OutputForm, emit
from factorize.api.terminal.sources import open_results, read_spec
from factorize.api.terminal.text import describe_seconds
from factorize.errors import NotFound


def estimate(spec: SpecText, store: StoreUrl = None, output: Output = OutputForm.TEXT) -> None:
    """Say how long a spec takes on this machine and how much memory, and whether the store has it; solves nothing.

    The first estimate on a machine measures it, for a few seconds.
    """
    from factorize.api.local import cost, plan
    from factorize.api.pace import measured_pace

    results = None
    with suppress(NotFound):
        results = open_results(store, create=False)
    planned = plan(read_spec(spec), results)
    seconds, size = cost(planned)
    pace = measured_pace()
    until, posted = pace.command(planned.spec, seconds), pace.service(planned.spec, seconds)
    known = planned.known is not None
    document = {
        "spec": planned.spec.document(),
        "spec_digest": planned.spec.digest,
        "known": known,
        "estimate": {
            "seconds": seconds,
            "bytes": size,
            "until_done": round(until, 3),
            "until_done_posted": round(posted, 3),
        },
    }
    lines = [
        f"mechanism     {planned.spec.mechanism.kind}",
        f"until done    {describe_seconds(until)} by `factorize solve`, {describe_seconds(posted)} posted to a service",
        f"memory        {size / 2**20:.0f} MiB",
        f"stored        {'yes: it is not solved again' if known else 'no'}",
    ]
    emit(output, document, "\n".join(lines))
