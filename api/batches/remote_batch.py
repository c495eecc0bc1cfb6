"""A batch that a service solves: specs are posted as they are read, few are outstanding, and each end is looked up.

Nothing is kept between runs. A spec that the service has solved meanwhile is answered at once when it is posted again,
so a batch that was killed goes on where it was.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from factorize.errors import CorruptObject, FactorizeError, ServiceError, ServiceUnreachable, SolveFailed
from factorize.format.manifest import check_manifest

if TYPE_CHECKING:
    import numpy as np

    from factorize.api.batches.lanes import Ended, Numbered
    from factorize.client.service import Service

OUTSTANDING = 256
"""Jobs that are waited for at a time: enough for a cluster's workers, little for its queue."""
LOOKED_AT = 16
"""Of them, the oldest that are asked for in each round."""
PATIENCE_SECONDS = 300.0
"""Without an answer of the service, after which a batch ends."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_AWAY = (429, 502, 503, 504)


class RemoteBatch:
    """Posts specs to a service and waits for their ends. For one thread.

    Args:
        service: the service.
        ended: called once for each spec; the seconds are those since it was posted, 0 if it is known.
        outstanding: jobs that are waited for at a time.
    """

    def __init__(self, service: Service, ended: Ended, *, outstanding: int = OUTSTANDING) -> None:
        self._service, self._ended, self._most = service, ended, outstanding
        self._waiting: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._pause = _FIRST_PAUSE

    def solve(self, specs: Iterable[Numbered]) -> None:
        """Have specs solved, in order; few are held at a time.

        Raises:
            ServiceUnreachable: nothing has answered for minutes.
        """
        for one in specs:
            while len(self._waiting) >= self._most:
                self._look()
            self._post(one)
        while self._waiting:
            self._look()

    def _post(self, one: Numbered) -> None:
        try:
            for part in one.plan.spec.user_matrices().values():
                if part.bound:
                    self._patiently(partial(upload, self._service, part.array))
            answer = self._patiently(partial(self._service.post, one.plan.spec))
        except ServiceUnreachable:
            raise
        except FactorizeError as error:
            self._ended(one.number, error, 0.0)
            return
        if not self._over(one.number, answer, 0.0):
            self._waiting[answer["spec_digest"]] = one.number, time.monotonic()

    def _look(self) -> None:
        """Ask for the oldest jobs, and wait longer where nothing has ended."""
        ended = 0
        for spec_digest in list(self._waiting)[:LOOKED_AT]:
            number, begun = self._waiting[spec_digest]
            seconds = time.monotonic() - begun
            try:
                answer = self._patiently(partial(self._service.status, spec_digest))
            except ServiceUnreachable:
                raise
            except FactorizeError as error:
                del self._waiting[spec_digest]
                self._ended(number, error, seconds)
                continue
            if self._over(number, answer, seconds):
                ended += 1
                del self._waiting[spec_digest]
            else:
                self._waiting.move_to_end(spec_digest)
        self._pause = _FIRST_PAUSE if ended else min(2 * self._pause, _LONGEST_PAUSE)
        if not ended:
            time.sleep(self._pause)

    def _over(self, number: int, answer: dict[str, Any], seconds: float) -> bool:
        """Tell the end of a job that has ended; whether it has."""
        if "certificate" in answer:
            self._ended(number, _checked(answer), seconds)
        elif answer.get("state") == "failed":
            error = answer.get("error") or {}
            self._ended(number, SolveFailed(str(error.get("message"))[:2000]), seconds)
        elif answer.get("state") == "cancelled":
            self._ended(number, SolveFailed("somebody cancelled the job; start the batch again to solve it"), seconds)
        else:
            return False
        return True

    def _patiently(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Ask until the service has a place for the request and answers it."""
        end, pause = time.monotonic() + PATIENCE_SECONDS, _FIRST_PAUSE
        while True:
            try:
                return ask()
            except ServiceError as error:
                away = isinstance(error, ServiceUnreachable) or error.status in _AWAY
                if not away or time.monotonic() > end:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _checked(manifest: dict[str, Any]) -> dict[str, Any] | CorruptObject:
    """Return a manifest, or why it is none: it does not hash to its digest."""
    try:
        check_manifest(manifest)
    except CorruptObject as error:
        return error
    return manifest


def upload(service: Service, array: np.ndarray) -> dict[str, Any]:
    """Give a service a matrix that specs name by its sha256.

    Raises:
        ServiceError: it is refused.
        ServiceUnreachable: nothing answered.
    """
    data = array.astype("<f8", order="C").tobytes()
    path = f"/v1/matrices?rows={array.shape[0]}&columns={array.shape[1]}"
    headers = {"Content-Type": "application/octet-stream"}
    with service.connect() as connection:
        return connection.send("POST", path, body=data, headers=headers).document()
