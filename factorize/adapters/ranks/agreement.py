"""Agreement of the ranks of a torch job: the values that all must share are compared before anything is released.

It uses the store by which the processes found each other, with a time limit: if a rank failed, or took another way
through the program, the others stop with a reason, and none waits for ever.
"""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

import torch

from factorize.errors import FactorizeError, InvalidParameter

Made = TypeVar("Made")

PATIENCE = 120.0
"""The seconds that a rank waits for the others."""
_NUMBERS = count()
"""The numbers of the exchanges, which are the same on all ranks."""
_REMEDIES = {
    "kind": "the ranks are at different places in the program; call the same functions in the same order on all",
    "parameters": "the ranks have different parameters, as stages of a pipeline do, and none can clip by the whole "
    "norm; give every rank all parameters, whole (DDP) or sharded (fully_shard, tensor parallel)",
    "mesh": "the meshes do not contain the same ranks, as in pipeline parallelism; shard all parameters over meshes "
    "of all ranks",
    "values": "replicas of the parameters differ: the model was not broadcast, or they are stages of a pipeline; wrap "
    "it in DistributedDataParallel, which makes them equal, before you make the optimizer",
    "seed": "draw one secret on rank 0 (secrets.randbits(128)), send it by broadcast_object_list, and give it to "
    "every rank; the versions of torch and numpy must be the same, too",
    "factorization": "load the same digest on all",
    "data": "an index of the data set names another example there, so examples would take part more often than the "
    "participation allows; give every rank the whole data set, split and shuffled by the same seed, in one order",
    "sigma_of_sums": "give all ranks one calibration",
    "step": "restore the same checkpoint on every rank, and take every step on all",
}


def world_size() -> int:
    """Return the number of processes of the job: 1 if torch has no distributed package, or it was not started."""
    return torch.distributed.get_world_size() if _started() else 1


def own_rank() -> int:
    """Return this process's rank, 0 if there is no other."""
    return torch.distributed.get_rank() if _started() else 0


def require_distributed(what: str) -> None:
    """Refuse to go on without a process group.

    Raises:
        InvalidParameter: there is none.
    """
    if not torch.distributed.is_available():
        message = f"{what} needs torch.distributed, which this torch does not have; install one that has it"
        raise InvalidParameter(message, field="parameters")
    if not torch.distributed.is_initialized():
        message = f"{what} needs a process group; call torch.distributed.init_process_group (or torchrun) first"
        raise InvalidParameter(message, field="parameters")


def refuse_other_ranks(ranks: int) -> None:
    """Refuse a job of one process among several ranks, which would each release their own gradients.

    Args:
        ranks: number of processes that the job knows of.

    Raises:
        InvalidParameter: there are others.
    """
    launched = os.environ.get("WORLD_SIZE", "1")  # by torchrun
    if ranks == 1 and not _started() and launched.isdecimal() and int(launched) > 1:
        raise InvalidParameter(
            f"{launched} processes were launched (WORLD_SIZE), and each would make this job alone, without a process "
            "group: with one seed the differences of what they release have no noise. Start one process, or call "
            "torch.distributed.init_process_group first",
            field="ranks",
        )
    if ranks == 1 < world_size():
        raise InvalidParameter(
            f"the process group has {world_size()} ranks, and each would make this job alone: torch's DDP adds up "
            "their gradients before they are clipped, and with one seed their differences have no noise. Give "
            "make_private the model in Opacus's DifferentiallyPrivateDistributedDataParallel, which shares each batch "
            "among the ranks, or train in one process, without a process group",
            field="ranks",
        )


def agree(kind: str, make: Callable[[], tuple[Made, dict[str, object]]]) -> Made:
    """Make something on every rank, and return it if all could and all tell the same about theirs.

    Args:
        kind: the thing that is made, for messages.
        make: a function that returns it and the values that must be equal on all ranks, as plain JSON. An error that it
            raises on one rank stops all of them.

    Raises:
        InvalidParameter: the ranks differ, or one of them failed or does not answer.
    """
    if world_size() == 1:
        return make()[0]
    try:
        made, shared = make()
    except Exception as reason:  # any error counts, since the others wait
        with suppress(FactorizeError):
            settle(kind, {"error": f"{type(reason).__name__}: {reason}"}, refuse_difference)
        raise
    settle(kind, shared, refuse_difference)
    return made


def settle(kind: str, told: dict[str, Any], judge: Callable[[Sequence[dict[str, Any]]], Any]) -> Any:
    """Return rank 0's verdict on what all ranks tell; all ranks call it, and all raise the judge's error.

    Args:
        kind: the subject, the same on all ranks.
        told: this rank's values, as plain JSON.
        judge: a function of all ranks' values, by rank, that returns plain JSON.

    Raises:
        InvalidParameter: the judge refuses, or a rank does not come.
    """
    if world_size() == 1:
        return judge([told])
    number, store = next(_NUMBERS), torch.distributed.distributed_c10d._get_default_store()
    mine, verdict = f"factorize/{number}/{own_rank()}", f"factorize/{number}/verdict"
    answer = None
    with suppress(RuntimeError):  # the process that holds the store may have ended
        store.set(mine, json.dumps({"kind": kind, **told}))
        if own_rank() == 0:
            store.set(verdict, json.dumps(_verdict(store, number, judge)))
        answer = _wait(store, verdict, 2 * PATIENCE)
        if number > 1:  # all have read the exchange before the last
            store.delete_key(f"factorize/{number - 2}/{own_rank()}")
            if own_rank() == 0:
                store.delete_key(f"factorize/{number - 2}/verdict")
    if answer is None:
        raise InvalidParameter(
            f"rank 0 ended, or did not reach {kind!r} within {2 * PATIENCE:g} s; see its log", field="ranks"
        )
    said = json.loads(answer)
    if "error" in said:
        raise InvalidParameter(said["error"], field=said.get("field", "ranks"))
    return said["result"]


def on_any_rank(kind: str, here: bool) -> bool:
    """Return whether something holds on this rank or another; all ranks call it, as in `settle`."""
    return bool(settle(kind, {"holds": here}, lambda ranks: any(each["holds"] for each in ranks)))


def refuse_difference(told: Sequence[dict[str, object]]) -> None:
    """Refuse values that are not the same on all ranks.

    Raises:
        InvalidParameter: a rank failed, or a field differs.
    """
    failed = [rank for rank, each in enumerate(told) if "error" in each]
    if failed:
        raise InvalidParameter(f"rank {failed[0]} failed, so all ranks stop: {told[failed[0]]['error']}", field="ranks")
    for field in told[0]:
        other = [rank for rank, each in enumerate(told) if each.get(field) != told[0][field]]
        if other:
            ours, theirs = (_shown(field, told[rank].get(field)) for rank in (0, other[0]))
            remedy = _REMEDIES.get(field, "make it the same on all ranks")
            raise InvalidParameter(f"{field} is {theirs} on rank {other[0]}, {ours} on rank 0: {remedy}", field=field)


def _verdict(store: object, number: int, judge: Callable[[Sequence[dict[str, object]]], Any]) -> dict[str, object]:
    answers = []
    for rank in range(world_size()):
        answer = _wait(store, f"factorize/{number}/{rank}", PATIENCE)
        if answer is None:
            return {"error": f"rank {rank} did not answer within {PATIENCE:g} s: it ended or failed; see its log"}
        answers.append(json.loads(answer))
    try:
        kinds = [{"kind": each.pop("kind")} for each in answers]
        refuse_difference(kinds)
        return {"result": judge(answers)}
    except FactorizeError as reason:
        return {"error": str(reason), "field": getattr(reason, "field", None) or "ranks"}


def _wait(store: Any, key: str, seconds: float) -> bytes | None:
    try:
        store.wait([key], timedelta(seconds=seconds))
    except RuntimeError:  # the time limit raises this, and so does a store whose process ended
        return None
    return store.get(key)


def _shown(field: str, value: object) -> str:
    if field in ("seed", "data"):
        return "none" if value is None else f"another ({str(value)[:6]})"
    return str(value)[:80]


def _started() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
