"""One run of the simulation: a plan that a seed draws, its operations and faults, and what must hold after each step."""

from __future__ import annotations

import gc
import json
import random
import stat
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from factorize.api.access.caller import ANYONE, AccessRefused, Caller, KeyQuotas, QuotaExhausted, Scope
from factorize.api.access.key_register import KeyRequest
from factorize.api.catalog import list_items
from factorize.api.jobs import audit_log
from factorize.api.jobs.database import _connect
from factorize.api.jobs.ledger import LEASE_SECONDS, Ledger, ListQuery
from factorize.api.jobs.solve_job import SolveJob
from factorize.encoding import canonical_json, sha256
from factorize.errors import (
    CorruptObject,
    FactorizeError,
    InvalidParameter,
    NotFound,
    Revoked,
    StoreUnavailable,
    TooLarge,
)
from factorize.storage import fsck as fsck_module
from factorize.storage import gc as gc_module
from factorize.storage.blobs import blob_key
from factorize.storage.index import Result
from factorize.storage.records import manifest_key, read_entry, spec_key
from factorize.storage.store import open_store

from .answers import Known, by_digest, by_file, by_spec, library, spec_of
from .cluster import Cluster, Node, simulated
from .database import connect_directly
from .medium import BUCKET_MUTATING, MUTATING, ROOT, Content, Disk, Odd
from .world import EPOCH, Task, Violation, World, drive

BUSY_SECONDS = 30.0
END_SECONDS = 400.0
"""After the last fault, within which each job has ended: three solves that hang, leases that run out, pauses."""
OPEN_JOBS, CORE_SECONDS, KEPT_BYTES = 2, 10, 3000
CALLERS = (
    ANYONE,
    Caller("key:few", "few", frozenset({Scope.SUBMIT, Scope.READ}), KeyQuotas(open_jobs=OPEN_JOBS)),
    Caller("key:day", "day", frozenset({Scope.SUBMIT}), KeyQuotas(core_seconds_per_day=CORE_SECONDS)),
    Caller("key:room", "room", frozenset({Scope.SUBMIT, Scope.UPLOAD}), KeyQuotas(kept_bytes=KEPT_BYTES)),
    Caller("key:tiny", "tiny", frozenset({Scope.SUBMIT}), KeyQuotas(core_seconds_per_day=3)),
)
OPERATIONS = {
    "post": 12, "burst": 3, "get": 7, "follow": 3, "cancel": 5, "revoke": 3, "put": 6, "gc": 4, "fsck": 3, "upload": 2, "key": 2,
    "admit": 1, "page": 3, "refuse": 1, "audit": 2, "retry": 2, "read": 6, "work": 2, "open": 1, "news": 2,
}  # fmt: skip
PLACES = ("blobs", "manifests", "specs", "families", "revoked")
READS = frozenset({"open", "read", "status", "list", "lock"})
BUCKET_REQUESTS = BUCKET_MUTATING | {"head", "get", "list"}
STATEMENTS = frozenset({"begin", "statement", "commit"})
WINDOWS = ("full", "read-only", "gone", "slow", "crawling", "database", "news-lost", "news-twice", "submit", "no-room")
FAULTS = {
    "medium": 6, "ledger": 5, "kill": 6, "act": 9, "window": 5, "stop": 2, "skew": 2, "power": 3, "rot": 2, "misplace": 1, "term": 1,
    "worker": 2, "scheduler": 1, "restore": 1, "stray": 1,
}  # fmt: skip
ACTS = (
    "crash",
    "hang",
    "fail",
    "memory",
    "interrupt",
    "interrupt",
    "garbage",
    "swap",
    "stale",
    "stale",
    "bug",
    "silent",
)


@dataclass(frozen=True)
class Item:
    """One operation or fault of a plan."""

    number: int
    at: float
    kind: str
    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.at:7.3f} {self.kind} {' '.join(map(str, self.values))}"


@dataclass
class Plan:
    """What a seed draws: how the cluster is made, and what is done to it."""

    seed: int
    shape: dict[str, Any]
    items: list[Item]

    def text(self, found: str = "") -> str:
        """Return it as JSON, as tests/simulation/kept has plans that once failed; `found` says of what."""
        lines = ",\n  ".join(json.dumps([item.number, item.at, item.kind, item.values]) for item in self.items)
        head = json.dumps({"found": found, "seed": self.seed, "shape": self.shape})
        return f'{head[:-1]}, "items": [\n  {lines}]}}\n'


def read_plan(text: str) -> Plan:
    """Return a plan from its JSON."""

    def frozen(value: Any) -> Any:
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    plan = json.loads(text)
    return Plan(plan["seed"], plan["shape"], [Item(*frozen(item)) for item in plan["items"]])


def draw_plan(seed: int) -> Plan:
    luck = random.Random(seed)
    bucket = luck.random() < 0.35
    remote = luck.random() < 0.4
    shape = {
        "medium": "bucket" if bucket else "disk",
        "remote": remote,
        "nodes": luck.choice((1, 2, 2, 3)),
        "machines": luck.choice((1, 2)),
    }
    if bucket and luck.random() < 0.05:
        shape["broken"] = luck.choice(("overwrites", "late", "whole"))
    liked = luck.sample(range(len(library())), 3)  # so that much is asked of the same few
    moments = [luck.uniform(2.0, BUSY_SECONDS) for _ in range(4)]  # at which much is asked at once

    def moment(first: float) -> float:
        soon = min(luck.choice(moments) + luck.expovariate(20.0), BUSY_SECONDS)
        return round(soon if luck.random() < 0.6 else luck.uniform(first, BUSY_SECONDS), 3)

    items = []
    for number in range(luck.randrange(15, 36)):
        kind = luck.choices(list(OPERATIONS), list(OPERATIONS.values()))[0]
        spec = luck.choice(liked) if luck.random() < 0.7 else luck.randrange(len(library()))
        caller = luck.choices(range(len(CALLERS)), (4, 3, 3, 3, 1))[0]
        values = (luck.randrange(shape["nodes"]), spec, caller, luck.randrange(1000))
        items.append(Item(number, moment(2.0), kind, values))
    for number in range(100, 100 + luck.choice((0, 12, 20, 28, 40))):
        kind = luck.choices(list(FAULTS), list(FAULTS.values()))[0]
        soon = kind == "act" and luck.random() < 0.7  # else what it is for is solved already
        at = round(luck.uniform(0.0, 2.0), 3) if soon else moment(0.0)
        items.append(Item(number, at, f"!{kind}", _values(kind, shape, liked, luck)))
    items += [more for item in items for more in _beside(item, random.Random(f"{seed} {item.number}"), shape["nodes"])]
    return Plan(seed, shape, sorted(items, key=lambda item: item.at))


def _beside(item: Item, luck: random.Random, nodes: int) -> list[Item]:
    """Return what makes a rare moment less rare: puts beside a revocation, long solves on services that stop or fall.

    Checks come beside what mends a flipped bit.
    """
    number = 20 * item.number + 1000
    if item.kind == "revoke":
        puts = [(luck.randrange(nodes), item.values[1], 0, luck.randrange(1000)) for _ in range(4)]
        moments = [round(item.at + luck.uniform(-0.05, 0.15), 3) for _ in puts]
        return [Item(number + k, at, "put", put) for k, (at, put) in enumerate(zip(moments, puts, strict=True))]
    if item.kind == "!rot":
        checks = [(luck.randrange(nodes), 0, 0, luck.randrange(1000)) for _ in range(3)]
        return [Item(number + k, round(item.at + 0.4 + 0.06 * k, 3), "fsck", one) for k, one in enumerate(checks)]
    if item.kind == "!stop" and item.values[1] > LEASE_SECONDS and item.at > 2.0:
        spec = luck.randrange(9)
        act = Item(number, item.at - 2.0, "!act", (spec, ("hang",) * 3))
        return [act, Item(number + 1, item.at - 1.5, "post", (item.values[0], spec, 0, luck.randrange(1000)))]
    if item.kind == "!power" and item.at > 2.0 and nodes > 1:
        specs = luck.sample(range(9), 4)
        acts = [Item(number + spec, item.at - 1.5, "!act", (spec, ("hang",))) for spec in specs]
        posts = [(luck.randrange(nodes), spec, 0, luck.randrange(1000)) for spec in specs]
        return acts + [Item(number + 10 + post[1], item.at - 1.0, "post", post) for post in posts]
    return []


def _values(kind: str, shape: dict[str, Any], liked: list[int], luck: random.Random) -> tuple[Any, ...]:
    node = luck.randrange(shape["nodes"])
    bucket = shape["medium"] == "bucket"
    requests = sorted(BUCKET_REQUESTS if bucket else MUTATING | READS)
    some = tuple(luck.sample(requests, luck.choice((1, 1, 2, len(requests)))))
    where = luck.choice((None, f"service{node}", f"worker{1 + node}" if shape["remote"] else f"service{node}"))
    match kind:
        case "medium":
            effect = luck.choice(
                ("error", "error-after", "full", "again-after", "forbidden")
                if bucket
                else ("error", "error-after", "full", "torn", "many", "locks")
            )
            return some, where, luck.choice((0, 0, 1, 3, 9)), effect
        case "ledger":
            return (
                tuple(luck.sample(sorted(STATEMENTS), luck.choice((1, 3)))),
                where,
                luck.choice((0, 0, 1, 4)),
                luck.choice(("conflict", "gone", "full", "gone-after")),
            )
        case "kill":
            which = luck.choice((some, tuple(sorted(STATEMENTS)), tuple(requests)))
            return which, where, luck.choice((0, 1, 2, 5, 11, 23)), luck.choice(("kill", "kill-after"))
        case "act":
            many = ("crash",) * 4, ("crash",) * 3, tuple(luck.choices(ACTS, k=2))
            return luck.choice(liked), luck.choice((*many, *((act,) for act in luck.choices(ACTS, k=6))))
        case "window":
            return luck.choice(WINDOWS), round(luck.uniform(0.2, 6.0), 2)
        case "stop":
            return node, round(luck.uniform(0.5, 25.0), 2)
        case "skew":
            return luck.choice(("database", f"service{node}")), luck.choice(
                (-3600.0, 3600.0, -86_400.0 * 400, 86_400.0 * 400, 30.0, -30.0, 5.0)
            )
        case "rot":
            return luck.choice((*PLACES, "revoked")), luck.randrange(1000)
        case "misplace":
            return luck.choice(PLACES), luck.randrange(1000)
        case "worker":
            return (luck.randrange(2),)
        case "power" | "restore" | "stray":
            return (luck.randrange(1000),)
        case _:
            return (node,)


@dataclass
class Oracle:
    """What clients were told, and what may excuse what they see later."""

    owed: set[str] = field(default_factory=set)
    revoked: set[str] = field(default_factory=set)
    revoking: bool = False
    half: set[str] = field(default_factory=set)
    """What was revoked for certain by a call that has failed, so that its likes may not be revoked yet."""
    deleted: set[str] = field(default_factory=set)
    rotten: set[str] = field(default_factory=set)
    damage: int = 0
    cancelled: set[str] = field(default_factory=set)
    keys: dict[str, Any] = field(default_factory=dict)
    revoked_keys: dict[str, float] = field(default_factory=dict)
    acted: dict[str, set[str]] = field(default_factory=dict)
    excused: set[str] = field(default_factory=set)
    entries: dict[str, str] = field(default_factory=dict)
    swept: bool = False
    answered: Counter[str] = field(default_factory=Counter)
    jobs: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    tasks: dict[str, str] = field(default_factory=dict)
    head: tuple[int, str] = (0, "")
    excused_until: float = -1.0
    restored: bool = False


@cache
def _template() -> bytes:
    with TemporaryDirectory() as folder:
        Ledger(f"sqlite:///{folder}/jobs.sqlite").close()
        return (Path(folder) / "jobs.sqlite").read_bytes()


@cache
def _keep_modules() -> None:
    """Let collections pass over what is imported and known: they are then ten times as quick."""
    gc.freeze()


class Run:
    """One run of a plan."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        library()
        (folder / "jobs.sqlite").write_bytes(_template())
        self.plan = plan
        self.world = World(plan.seed)
        self.cluster = Cluster(self.world, folder, plan.shape)
        self.oracle, self.requests = Oracle(), list[Task]()
        lasts = self.cluster.faults.lasts
        self.world.slow = lambda: 40.0 if lasts("slow") else 1000.0 if lasts("crawling") else 1.0
        self.cluster.database.committed = self._check_rows
        self.cluster.medium.watch = self._check_name
        self.copy = folder / "copy.sqlite"
        self.copy.write_bytes(_template())

    # The course of a run

    def play(self) -> None:
        _keep_modules()
        gc.collect()
        gc.disable()  # what a collection finalizes, and when, is no part of a seed
        with simulated(self.cluster):
            self.cluster.start()
            for item in self.plan.items:
                self.world.at(item.at, partial(self._begin, item))
            self.world.at(BUSY_SECONDS / 2, lambda: self.cluster.database.copy(self.copy))
            try:
                self._to_the_end()
            finally:
                for process in self.world.processes:
                    process.alive = False
                    self.world._bury(process)
                self.cluster.database.close()
                gc.enable()

    def _to_the_end(self) -> None:
        world, cluster = self.world, self.cluster
        world.run(lambda: world.now > BUSY_SECONDS + 0.01, BUSY_SECONDS + 60.0)
        cluster.faults.clear()
        for process in world.processes:
            process.stopped_until = 0.0
            process.skew = 0.0
        cluster.skews.clear()
        cluster.acts.clear()
        if broken := cluster.shape.get("broken"):
            if any(node.service is not None for node in cluster.nodes):
                raise Violation(f"a bucket was taken for a store, and its promise is broken: {broken}")
            return
        ended = world.run(self._settled, world.now + END_SECONDS)
        if not ended:
            raise Violation(f"not ended {END_SECONDS:g} s after the last fault: {self._open_jobs()}")
        end = world.process("end", "m9")
        cluster.attend(end)
        end.spawn("checks", self._check_end)
        if not world.run(lambda: end.tasks[0].done, world.now + END_SECONDS):
            raise Violation("the last checks have no end")

    def _open_jobs(self) -> list[Any]:
        return self.cluster.database.look(
            "SELECT spec_digest, state, owner, attempts, deaths FROM jobs WHERE state IN ('queued', 'running')"
        )

    def _settled(self) -> bool:
        """Whether every request has ended, and every job; looked at once a second."""
        if self.world.now < self._next_look:
            return False
        self._next_look = self.world.now + 1.0
        return (
            all(task.done for task in self.requests)
            and not self._open_jobs()
            and self.cluster.database.writer is None  # one that was slow before the faults ended may keep others out
            and all(node.service is not None and node.process.alive for node in self.cluster.nodes)
        )

    _next_look = 0.0

    def _begin(self, item: Item) -> None:
        if item.kind.startswith("!"):
            getattr(self, f"_fault_{item.kind[1:]}")(item, *item.values)
            return
        node = self.cluster.nodes[item.values[0]]
        if node.service is None or not node.process.alive:
            return
        known, caller = library()[item.values[1]], CALLERS[item.values[2]]
        call = partial(getattr(self, f"_{item.kind}"), node, node.service, known, caller, random.Random(item.values[3]))
        self.requests.append(node.process.spawn(f"{item.kind}{item.number}", partial(self._request, item, call)))

    def _request(self, item: Item, call: Callable[[], object]) -> None:
        """An operation; what it was told counts only if its process lived to tell it."""
        process = self.world.task.process
        try:
            answer = call()
            self.world.say(f"{process.name}: {item} -> {answer}")
            self.oracle.answered[item.kind] += 1
        except Violation:
            raise
        except (FactorizeError, AccessRefused) as error:
            self.world.say(f"{process.name}: {item} -> {type(error).__name__}: {str(error)[:90]}")
            self.oracle.answered[f"{item.kind}: {type(error).__name__}"] += 1

    # Operations

    def _post(self, node: Node, service: Any, known: Known, caller: Caller, luck: random.Random) -> str:
        before, spec = set(self.oracle.revoked), known.spec
        as_text = luck.random() < 0.3  # in which a matrix is named and not sent
        answer = service.obtain(canonical_json(spec.document()).decode() if as_text else spec, caller=caller)
        if isinstance(answer, Result):
            return self._seen(service, known, answer, before)
        self.oracle.owed.add(spec.digest)
        if answer.state == "done":
            raise Violation(f"a post was told of a job {spec.digest[:6]} that is done and has no result")
        return answer.state

    def _burst(self, node: Node, service: Any, known: Known, caller: Caller, luck: random.Random) -> str:
        """Several posts, one after another, by a caller with quotas."""
        refused = 0
        for other in (known, *luck.sample(library()[:9], 4)):
            try:
                self._post(node, service, other, CALLERS[1] if caller is ANYONE else caller, luck)
            except (QuotaExhausted, TooLarge, Revoked):
                refused += 1
        return f"{refused} of 5 refused"

    def _seen(self, service: Any, known: Known | None, result: Result, revoked: set[str]) -> str:
        """Check an answer: one of its spec's own, not revoked before it was asked for, and its bytes."""
        if known is not None and result.digest not in self._family(known):
            raise Violation(f"{known.spec.digest} was answered by {result.digest}, which is not its answer")
        if result.digest in revoked:
            raise Violation(f"the revoked {result.digest} was given out")
        manifest = result.manifest()
        if manifest["files"][0]["proof"] != {"release": f"proved {result.digest}"}:
            raise Violation(f"{result.digest} has the proof of another file")
        name, damage = manifest.file.sha256, self.oracle.damage
        with suppress(NotFound, Revoked, CorruptObject, StoreUnavailable):
            try:
                data = b"".join(service.store.blob(name).read())
            except CorruptObject:
                stays = service.store.digest_of(manifest.spec_digest) == result.digest
                there = not service.store.blobs.sound(name) and self.cluster.medium.bytes_at(blob_key(name)) is not None
                if stays and there and damage == self.oracle.damage:
                    raise Violation(f"{result.digest} stays the answer, and its file is known to be damaged") from None
                raise
            if sha256(data) != name or by_file()[name].digest != result.digest:
                raise Violation(f"the file of {result.digest} was given out with other bytes")
        return result.digest[:6]

    def _family(self, known: Known) -> set[str]:
        return known.digests | {one for other in library()[9:11] for one in other.digests if known is library()[9]}

    def _get(self, node: Node, service: Any, known: Known, caller: Caller, luck: random.Random) -> str:
        before = set(self.oracle.revoked)
        for one, data in known.files:
            if one.digest in before:
                with suppress(Revoked, StoreUnavailable):
                    service.store.blob(sha256(data))
                    raise Violation(f"the file of the revoked {one.digest} was given out")
        name = luck.choice([known.spec.digest, *sorted(known.digests)])
        found = service.lookup(name, caller=ANYONE)
        if isinstance(found, Result):
            if name in known.digests and found.digest != name:
                raise Violation(f"{name} was asked for, and {found.digest} given")
            return self._seen(service, known, found, before)
        if found is None and name == known.spec.digest and name in self.oracle.owed and not self.oracle.restored:
            raise Violation(f"the acknowledged post of {name} is not known any more")
        return "none" if found is None else found.state

    def _follow(self, node: Node, service: Any, known: Known, caller: Caller, luck: random.Random) -> str:
        job = drive(service.engine.wait(known.spec.digest, luck.uniform(0.1, 12.0)))
        return "none" if job is None else job.state

    def _cancel(self, node: Node, service: Any, known: Known, caller: Caller, luck: random.Random) -> str:
        self.oracle.cancelled.add(known.spec.digest)
        job = service.cancel(known.spec.digest, caller)
        return "none" if job is None else job.state

    def _retry(self, node: Node, service: Any, known: Known, caller: Caller, luck: random.Random) -> str:
        before = set(self.oracle.revoked)
        answer = service.retry(known.spec.digest, caller)
        return answer.state if isinstance(answer, SolveJob) else self._seen(service, known, answer, before)

    def _revoke(self, node: Node, service: Any, known: Known, caller: Caller, luck: random.Random) -> str:
        answers = {key[-69:-5] for key in self.cluster.medium.stored() if key.startswith("manifests/")} & by_digest()
        own = answers & known.digests or answers or known.digests
        digest = service.store.digest_of(known.spec.digest) if luck.random() < 0.5 else None
        digest = digest or luck.choice(sorted(own))

        def stands(revocation: Any) -> None:
            self._durable(f"revoked/{revocation.digest[:2]}/{revocation.digest}.json")
            self.oracle.revoked.add(revocation.digest)
            self.oracle.half.add(revocation.digest)

        self.oracle.cancelled.add(known.spec.digest)  # a job that stores what was revoked meanwhile fails
        self.oracle.revoking = True
        revoked = service.store.revoke(digest, "its claim is wrong", on_each=stands)
        self.oracle.half -= {revocation.digest for revocation in revoked}
        for revocation in revoked:
            service.audit.add("revocation", actor="operator", subject=revocation.digest)
        return digest[:6]

    def _put(self, node: Node, service: Any, known: Known, caller: Caller, luck: random.Random) -> str:
        one, data = luck.choice(known.files)
        revoked, damage, store = set(self.oracle.revoked), self.oracle.damage, self.cluster.own_store()
        proof = {"digest": one.digest, "sha256": sha256(data), "release": f"proved {one.digest}"}
        if luck.random() < 0.1:
            with suppress(CorruptObject):
                store.put(one, check=lambda path: {**proof, "digest": "0" * 64})
        manifest = store.put(one, check=lambda path: dict(proof))
        if one.digest in revoked:
            raise Violation(f"the revoked {one.digest} was stored again, and nothing said")
        if one.digest not in self.oracle.revoked | self.oracle.deleted and damage == self.oracle.damage:
            key, file = manifest_key(manifest.digest), blob_key(manifest.file.sha256)
            there = self.cluster.medium.bytes_at
            if sha256(there(file) or b"") != manifest.file.sha256:
                raise Violation(f"a put of {one.digest} was acknowledged, and its file is not whole")
            if json.loads(there(key) or b"{}").get("record") != manifest:
                raise Violation(f"a put of {one.digest} has returned another manifest than the store has")
            entry = there(spec_key(known.spec.digest))
            if entry is None and not known.digests & self.oracle.deleted:  # else a sweep is about to enter this answer
                raise Violation(f"a put of {one.digest} was acknowledged, and its spec has no entry")
            try:
                _ = entry and read_entry(entry, "the entry")
            except CorruptObject as error:
                raise Violation(f"a put of {one.digest} was acknowledged, and {error}") from None
            self._durable(key, file)
        return manifest.digest[:6]

    def _durable(self, *keys: str) -> None:
        """See that the worst power loss keeps what has just been acknowledged."""
        if isinstance(self.cluster.medium, Disk) and not self.oracle.rotten & set(keys):
            kept = self.cluster.medium.survivor(None)
            for key in keys:
                if kept.get(ROOT / key) is None:
                    raise Violation(f"{key} was acknowledged, and a power loss now would take it away")

    def _gc(self, node: Node, service: Any, known: Known, caller: Caller, luck: random.Random) -> str:
        delete = []
        if luck.random() < 0.4 and (digest := service.store.digest_of(known.spec.digest)):
            delete.append(digest)
            self.oracle.deleted.add(digest)
            self.oracle.excused.add(known.spec.digest)
        grace = luck.choice((0.0, 3600.0))
        if luck.random() < 0.1:
            with suppress(NotFound):
                gc_module.gc(service.store, delete=["0" * 64])
                raise Violation("a result that nobody has stored was deleted")
        if luck.random() < 0.8:
            self._put_beside(known, luck)
        skew, medium = self.world.task.process.skew, self.cluster.medium
        self.oracle.swept |= grace == 0.0 or skew > grace  # all is old by such a clock
        young = medium.written_since(EPOCH + self.world.now - grace) if skew <= 0.0 else set()
        removed = gc_module.gc(service.store, grace_seconds=grace, delete=delete, dry_run=luck.random() < 0.1)
        if taken := {removal.key for removal in removed.removals if removal.kind == "unnamed-blob"} & young:
            raise Violation(f"{taken} went, and nothing names what is {grace:g} s old")
        if isinstance(medium, Disk) and not removed.dry_run:
            for path in (ROOT / manifest_key(digest) for digest in removed.deleted):
                if path in medium.durable and path not in medium.names:
                    raise Violation(f"{path} was deleted, and a power loss now would bring it back")
        return f"{len(removed.removals)} removed"

    def _put_beside(self, known: Known, luck: random.Random) -> None:
        """Leave the files of a spec as a put leaves them that was killed hours ago, and have them put again just now."""
        medium = self.cluster.medium
        for key, data in ((blob_key(sha256(data)), data) for _, data in known.files):
            if key not in medium.stored():
                medium.leave(key, data, 7200.0)
        for _ in range(3):
            moment = self.world.now + luck.uniform(0.0, 0.3)
            self._put_at(moment, [[one is known for one in library()].index(True)], luck)

    def _put_at(self, moment: float, places: list[int], luck: random.Random) -> None:
        """Have one of some results put again."""
        values = (luck.randrange(len(self.cluster.nodes)), luck.choice(places), 0, luck.randrange(1000))
        self.world.at(moment, partial(self._begin, Item(0, moment, "put", values)))

    def _fsck(self, node: Node, service: Any, known: Known, caller: Caller, luck: random.Random) -> str:
        report = fsck_module.fsck(service.store, repair=luck.random() < 0.4)
        return f"{len(report.findings)} findings"

    def _upload(self, node: Node, service: Any, known: Known, caller: Caller, luck: random.Random) -> str:
        matrix = library()[-1].matrix
        assert matrix is not None
        service.upload(matrix if luck.random() < 0.5 else matrix * luck.randrange(1, 4), caller)
        return "kept"

    def _key(self, node: Node, service: Any, known: Known, caller: Caller, luck: random.Random) -> str:
        register, gone = service.keys("operator"), set(self.oracle.revoked_keys)
        state, last = (
            luck.choice((None, "active", "revoked", "expired")),
            luck.choice(sorted(self.oracle.keys) or [None]),
        )
        shown = {key.id for key in register.keys(state=state, after=luck.choice((None, last)), limit=3)}
        if state == "active" and not self.oracle.restored and shown & gone:
            raise Violation(f"revoked keys are listed as active: {shown & gone}")
        if self.oracle.keys and luck.random() < 0.6:
            name = luck.choice(sorted(self.oracle.keys))
            register.revoke(name)
            self.oracle.revoked_keys.setdefault(name, self.world.now)
            self._durable(f"withdrawn-keys/{name}")
            for wait in (0.3, 1.2, 2.0):
                node.process.spawn(
                    f"admit{node.process.number}",
                    partial(
                        self._request,
                        Item(0, 0.0, "admit", ()),
                        partial(self._admit, node, service, known, caller, luck),
                    ),
                    wait,
                )
            return f"{name} is revoked"
        key, token = register.create(KeyRequest(name="n", scopes=[Scope.READ]))
        if key.id in self.oracle.keys:
            raise Violation(f"the key {key.id} was handed out twice")
        self.oracle.keys[key.id] = token
        return f"{key.id} is made"

    def _admit(self, node: Node, service: Any, known: Known, caller: Caller, luck: random.Random) -> str:
        if not self.oracle.keys or node.gate is None:
            return "no key"
        name = luck.choice(sorted(self.oracle.keys))
        ended = self.oracle.revoked_keys.get(name, float("inf"))
        began = self.world.now
        admitted = drive(node.gate.admit(self.oracle.keys[name].text.encode()))
        if began > ended + 1.0 and not self.oracle.restored:
            raise Violation(f"the key {name} was revoked {began - ended:g} s before it was let in")
        return str(admitted.name)

    def _page(self, node: Node, service: Any, known: Known, caller: Caller, luck: random.Random) -> str:
        cursor, count = "no cursor", 0
        with suppress(InvalidParameter):
            list_items(service.catalog, service.ledger, ListQuery(cursor=cursor))
            raise Violation("a cursor that no list has given out was taken")
        query = {"state": luck.choice((None, None, "done", "failed")), "workload": luck.choice((None, "decay"))}
        query["search"], following = luck.choice(("", "", "decay n=4", "0")), None
        while count < 20:
            asked = ListQuery(cursor=following, limit=3).model_copy(update=query)
            rows, following = list_items(service.catalog, service.ledger, asked, caller)
            count += len(rows)
            if query["workload"] and {row["workload"] for row in rows} - {query["workload"]}:
                raise Violation(f"the list has other workloads than {query['workload']}")
            if following is None:
                break
        return f"{count} rows"

    def _refuse(self, node: Node, service: Any, known: Known, caller: Caller, luck: random.Random) -> str:
        for _ in range(luck.choice((1, 3))):
            service.audit.refuse(caller.actor, luck.choice(("unauthorized", "forbidden")))
        if luck.random() < 0.5:
            service.audit.close()  # writes down what was only counted
        return "noted"

    def _audit(self, node: Node, service: Any, known: Known, caller: Caller, luck: random.Random) -> str:
        found = audit_log.verify_log(service.ledger.engine)
        again = audit_log.verify_log(service.ledger.engine, audit_log.read_head(str(found.head)))
        if not again.expected and not self.oracle.restored:
            raise Violation(f"the audit log had the row {found.head}, and has it no more")
        with suppress(InvalidParameter):
            audit_log.read_head("1:2")
            raise Violation("what is no head of a log was read")
        if found.rows > 1:
            self._forge(luck.randrange(1, found.rows), luck)
        return str(found.rows)

    def _forge(self, row: int, luck: random.Random) -> None:
        """See that a copy of the log in which a row was changed, or taken out, does not pass."""
        copy = self.cluster.folder / "forged.sqlite"
        self.cluster.database.copy(copy)
        with closing(connect_directly(copy)) as forged, forged:
            change = luck.choice(("DELETE FROM audit", "UPDATE audit SET actor = 'nobody'"))
            forged.execute(f"{change} WHERE seq = {row}")
        engine = _connect(f"sqlite:///{copy}")
        with suppress(CorruptObject, StoreUnavailable):
            audit_log.verify_log(engine)
            raise Violation(f"a log in which row {row} was forged has passed")
        engine.dispose()

    def _work(self, node: Node, service: Any, known: Known, caller: Caller, luck: random.Random) -> str:
        """What is counted of work that is no job."""
        holdings, worker = service.holdings, CALLERS[luck.choice((0, 1, 3))]
        holdings.check_left(caller, luck.uniform(0.0, 4.0))
        with holdings.working(worker, 2):
            self.world.park(luck.uniform(0.0, 1.0))
        holdings.keep_form(worker, known.files[0][0].digest)
        return f"counted, {len(service.engine.solves.missing())} missing"

    def _open(self, node: Node, service: Any, known: Known, caller: Caller, luck: random.Random) -> str:
        """Names that are no store's."""
        names = ["s3://UP/../x", "s3://bucket?x=1", "ftp://x", "file://host/x", ""]
        if not self.cluster.in_bucket:
            self.cluster.medium.change(Path("/simulated/other"), None)
            self.cluster.medium.change(Path("/simulated/other/store.json"), self.cluster.medium.synced(b"{}"))
            names += ["/simulated/none", "/simulated/none", "/simulated/other", "/simulated/other"]
        name = luck.choice(names)
        with suppress(InvalidParameter, NotFound, StoreUnavailable):
            open_store(name, create=name.endswith("other"))
            raise Violation(f"{name!r} was opened as a store")
        return f"{name} is none"

    def _news(self, node: Node, service: Any, known: Known, caller: Caller, luck: random.Random) -> str:
        """What a stranger, or a worker of another release, may say of a solve."""
        task = luck.choice([*service.engine._sent, "nobody's"])
        message = {"error": {"type": "x", "message": "y"}}
        said: Any = luck.choice(
            (
                None,
                {"ending": "DONE"},
                {"ending": "FAILED", "error": None, "seconds": 1.0},
                {"ending": "CRASHED", "seconds": float("inf"), **message},
                {"ending": "CANCELLED", "seconds": 1.0, "timings": {"a": [2, 1], "b": "c", "d": [1, 2]}, **message},
            )
        )
        heard = {"task": task, "said": said, "event": luck.choice(("ended", "ended", "progress", "other"))}
        progress = luck.choice((None, {}, {"iteration": -1, "seconds": 1.0}, {"iteration": 1, "seconds": 1e400}))
        service.engine._hear(luck.choice((None, {}, *[{**heard, "progress": progress}] * 6)))
        return f"{heard['event']} of {task[:6]}"

    def _read(self, node: Node, service: Any, known: Known, caller: Caller, luck: random.Random) -> str:
        """What commands and other routes ask of a store."""
        store, before = self.cluster.own_store(), set(self.oracle.revoked)
        match luck.randrange(9):
            case 0:
                found = {manifest.digest for manifest in store.items(workload="decay", n=4)}
                if found & before:
                    raise Violation("the store lists what was revoked")
                return f"{len(found)} items"
            case 1:
                one = store.load(known.spec.digest)
                if one.digest not in self._family(known) or one.digest in before:
                    raise Violation(f"{known.spec.digest} was loaded as {one.digest}")
                return str(one.digest[:6])
            case 2:
                return str(len(store.index.beginning(known.spec.digest[:6])))
            case 3:
                blob = store.blob(sha256(known.files[0][1]))
                data = b"".join([*blob.read(10, 50), *blob.read(50)])
                if data != known.files[0][1][10:]:
                    raise Violation("a range has other bytes than the file")
                return f"{len(data)} bytes"
            case 5:
                with suppress(InvalidParameter):
                    store.blob(sha256(known.files[0][1])).read(5, 2)
                    raise Violation("a range that ends before it begins was read")
                with suppress(InvalidParameter):
                    store.revoke(known.files[0][0].digest, " ")
                    raise Violation("a result was revoked without a reason")
                return "refused"
            case 6:
                matrix = library()[-1]
                part = next(iter(matrix.spec.canonical().user_matrices().values()))
                with suppress(InvalidParameter):
                    store.matrices.read(part.sha256, (3, 3))
                    raise Violation("a matrix was read in another shape")
                bound = store.matrices.bind(spec_of(matrix.spec.document()))
                return f"{len(bound.user_matrices())} bound, {len(store.matrices.bind(matrix.spec).user_matrices())}"
            case 7:
                with suppress(NotFound):
                    service.register.get("0" * 12)
                    raise Violation("a key that nobody made was found")
                with suppress(ValueError):
                    KeyRequest(name="a\n")
                    raise Violation("a key has a name of two lines")
                return "refused"
            case 4:
                store.keep(sha256(known.files[0][1]))
                return str(service.ledger.counts())
            case _:
                until = datetime.fromtimestamp(EPOCH + luck.uniform(0, 2 * BUSY_SECONDS), UTC)
                gone = gc_module.gc(store, created_before=until, dry_run=True)
                return f"{len(gone.deleted)} would go"

    # Faults

    def _strike(self, item: Item) -> None:
        self.cluster.faults.fired.add(item.number)
        self.world.say(str(item))

    def _fault_medium(self, item: Item, requests: tuple[str, ...], where: str | None, left: int, effect: str) -> None:
        self.cluster.faults.arm(item.number, frozenset(requests), where, left, effect)

    _fault_ledger = _fault_kill = _fault_medium

    def _fault_act(self, item: Item, spec: int, acts: tuple[str, ...]) -> None:
        digest = library()[spec].spec.digest
        self.cluster.acts.setdefault(digest, []).extend(
            (act, item.number * 10 + place) for place, act in enumerate(acts)
        )
        self.oracle.acted.setdefault(digest, set()).update(acts)

    def _fault_window(self, item: Item, name: str, seconds: float) -> None:
        self.cluster.faults.open(item.number, name, seconds)

    def _fault_stop(self, item: Item, node: int, seconds: float) -> None:
        self._strike(item)
        self.cluster.nodes[node].process.stopped_until = self.world.now + seconds

    def _fault_skew(self, item: Item, whose: str, seconds: float) -> None:
        self._strike(item)
        self.oracle.excused_until = self.world.now + LEASE_SECONDS + 1.0
        if whose == "database":
            self.world.database_skew += seconds
        else:
            self.cluster.skews[whose] = seconds
            self.cluster.nodes[int(whose[-1])].process.skew = seconds

    def _fault_term(self, item: Item, node: int) -> None:
        self._strike(item)
        one = self.cluster.nodes[node]
        if one.process.alive:
            one.process.spawn("stop", one.stop)

    def _fault_worker(self, item: Item, number: int) -> None:
        if self.cluster.scheduler is not None:
            self._strike(item)
            self.world.kill(self.cluster.scheduler.workers[number % len(self.cluster.scheduler.workers)])

    def _fault_scheduler(self, item: Item, _: int) -> None:
        if self.cluster.scheduler is not None:
            self._strike(item)
            self.cluster.scheduler.die()

    def _fault_power(self, item: Item, number: int) -> None:
        """The power of all machines goes, or, where the medium is a bucket, that of one."""
        self._strike(item)
        luck = random.Random(number)
        machines = {node.machine for node in self.cluster.nodes}
        down = {luck.choice(sorted(machines))} if self.cluster.in_bucket else machines
        for machine in down:
            self.cluster.boots[machine] = self.cluster.boots.get(machine, 0) + 1
        for process in self.world.processes:
            if process.alive and (process.machine in down or not self.cluster.in_bucket):
                self.world.kill(process)
        if isinstance(self.cluster.medium, Disk):
            self.world.at(self.world.now, partial(self.cluster.medium.lose_power, luck))
            self.oracle.entries.clear()

    def _fault_rot(self, item: Item, place: str, number: int) -> None:
        """Flip a bit of an object."""

        def flip(luck: random.Random, data: bytes) -> bytes:
            place = luck.randrange(len(data))
            return data[:place] + bytes([data[place] ^ 1 << luck.randrange(8)]) + data[place + 1 :]

        self._damage(item, place, number, flip)

    def _fault_misplace(self, item: Item, place: str, number: int) -> None:
        """Put another object of its kind in an object's place."""
        others = [data for key, data in sorted(self.cluster.medium.stored().items()) if key.startswith(f"{place}/")]
        self._damage(
            item, place, number, lambda luck, data: luck.choice([one for one in others if one != data] or [b""])
        )

    def _damage(self, item: Item, place: str, number: int, change: Callable[[random.Random, bytes], bytes]) -> None:
        luck = random.Random(number)
        there = {
            key: data for key, data in self.cluster.medium.stored().items() if key.startswith(f"{place}/") and data
        }
        self.oracle.rotten.add(place)
        if there:
            self._strike(item)
            key = luck.choice(sorted(there))
            self.oracle.rotten.add(key)
            self.oracle.damage += 1
            self.oracle.excused |= self._specs_behind(key)
            self.cluster.medium.damage(key, change(luck, there[key]))
            behind = [place for place, known in enumerate(library()) if known.spec.digest in self._specs_behind(key)]
            for later in (0.5, 4.0) if behind else ():  # a put has to replace it
                self._put_at(item.at + later, behind, luck)

    def _specs_behind(self, key: str) -> set[str]:
        """Specs whose answers are not whole without an object."""
        return {
            known.spec.digest
            for known in library()
            if any(
                name in key for name in (known.spec.digest, *known.digests, *(sha256(data) for _, data in known.files))
            )
            or (known.matrix is not None and key.startswith("blobs"))
        }

    def _fault_stray(self, item: Item, number: int) -> None:
        """A file of somebody else's in the store's folder, or what is no file."""
        self._strike(item)
        luck = random.Random(number)
        name = f"{luck.choice(PLACES[1:3])}/ab/{'ab' * 32}.json"
        key = luck.choice(("notes.txt", "blobs/readme", "manifests/ab/x.json", "tmp/old", name, name))
        self.oracle.rotten.add(key)
        self.oracle.excused.add(key)
        if self.cluster.in_bucket:
            self.cluster.medium.store(key, b"mine")
        elif ROOT in self.cluster.medium.names:
            self.cluster.medium.make_folders(ROOT / key)
            mode = luck.choice((stat.S_IFLNK, stat.S_IFIFO))
            self.cluster.medium.change(ROOT / key, Odd(mode) if key == name else Content())

    def _fault_restore(self, item: Item, number: int) -> None:
        """All services stop, and the ledger is put back from a copy."""
        if number % 2 or not self.world.now > BUSY_SECONDS / 2:
            return
        self._strike(item)
        for process in self.world.processes:
            if process.alive and process.name.startswith("service"):
                self.world.kill(process)
        self.world.at(self.world.now, self._put_back)

    def _put_back(self) -> None:
        self.cluster.database.restore(self.copy)
        self.oracle.restored, self.oracle.owed, self.oracle.head = True, set(), (0, "")
        self.oracle.jobs.clear()
        self.oracle.tasks.clear()

    # What must hold

    def _check_name(self, path: Path) -> None:
        """After a name has come: what a manifest names is there, and so is what an entry names."""
        key = str(path.relative_to(ROOT))
        taken_away = key.startswith("revoked/") and self.cluster.medium.bytes_at(key) is None
        if taken_away and Path(key).stem in self.oracle.revoked:
            raise Violation(f"{key} was acknowledged, and is taken away")
        there = self.cluster.medium.bytes_at
        data = there(key)
        if key.startswith("quarantine/blobs/") and data is not None and sha256(data) == Path(key).stem:
            raise Violation(f"{key} was taken out, and is sound")
        if key.startswith("manifests/") and data is None:
            self._check_unnamed(key)
        if data is None or self.oracle.rotten or key.partition("/")[0] not in ("manifests", "specs", "families"):
            return
        record = json.loads(data)["record"]
        name = record["digest"] if "digest" in record else Path(key).stem
        known = [(one, file) for file, one in by_file().items() if one.digest == name]
        if not known:
            raise Violation(f"{key} has appeared and is none of the answers: {data[:80]!r}")
        one, file = known[0]
        first = self.oracle.entries.setdefault(key, one.digest)
        if key.startswith("specs") and first != one.digest and first not in self._taken_back() | self.oracle.deleted:
            raise Violation(f"{key} named {first} and now {one.digest}")
        self.oracle.entries[key] = one.digest
        if record.get("files", [{}])[0].get("proof", {}) not in ({}, {"release": f"proved {one.digest}"}):
            raise Violation(f"{key} has appeared with the proof of another file")
        named = [blob_key(file), *([] if key.startswith("manifests") else [manifest_key(one.digest)])]
        if any(there(name) is None for name in named):
            if one.digest not in self.oracle.deleted:
                raise Violation(f"{key} has appeared before what it names")

    def _check_unnamed(self, key: str) -> None:
        """After a manifest was deleted, and not kept below quarantine/: no sound entry names it."""
        stored = self.cluster.medium.stored()
        if any(name.startswith(f"quarantine/{key}") for name in stored):
            return
        for name, text in stored.items():
            if name.startswith(("specs/", "families/")) and Path(key).stem.encode() in text:
                with suppress(CorruptObject):
                    if name in read_entry(text, name).keys:  # else it is the entry of another spec, misplaced
                        raise Violation(f"{key} is gone, and {name} names it")

    def _check_rows(self) -> None:
        """After a transaction: states and leases move as they may, quotas hold, the log only grows."""
        oracle, look = self.oracle, self.cluster.database.look
        seconds = EPOCH + self.world.now + self.world.database_skew
        rows = {
            row[0]: row
            for row in look("SELECT spec_digest, state, seq, owner, task, lease, digest, submitted, progress FROM jobs")
        }
        for digest, row in rows.items():
            _, state, seq, owner, task, lease, answer, submitted, _ = row
            before = oracle.jobs.get(digest)
            if before is not None and before != row:
                self._check_change(before, row)
                taken = (
                    owner != before[3]
                    and before[3]
                    and owner
                    and before[1] in ("queued", "running")
                    and state == "queued"
                    and task == before[4]
                )
                alive = taken and seconds < before[5] and not self._gone(before[3])
                if alive and self.world.now > oracle.excused_until:
                    raise Violation(f"{digest[:6]} was taken from {before[3]}, whose lease lasts")
            if state == "done" and (before is None or before[1] != "done"):
                if answer not in by_spec()[digest].digests:
                    raise Violation(f"{digest[:6]} is done by {answer}, which is not its answer")
                if digest not in oracle.excused and answer not in oracle.revoked | oracle.deleted:
                    self._durable(manifest_key(answer), spec_key(digest))
            if oracle.tasks.setdefault(task, digest) != digest:
                raise Violation(f"the task {task} was given to two jobs")
        if missing := oracle.jobs.keys() - rows.keys():
            raise Violation(f"the row of {missing} is gone")
        oracle.jobs = rows
        self._check_quotas(look)
        if row := look("SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1"):
            seq, head = row[0]
            if seq < oracle.head[0] or (seq == oracle.head[0] and head != oracle.head[1]):
                raise Violation(f"the audit log went back from {oracle.head} to {row[0]}")
            oracle.head = seq, head

    def _check_change(self, before: tuple[Any, ...], row: tuple[Any, ...]) -> None:
        """A change of one job: only a claim leaves a terminal state, and only the owner says how far a solve is."""
        name, state, seq, owner, task, _, _, submitted, _ = row
        was_open = before[1] in ("queued", "running")
        if seq < before[2]:
            raise Violation(f"the number of changes of {name[:6]} fell from {before[2]} to {seq}")
        if not was_open and state != before[1] and (state != "queued" or task == before[4]):
            raise Violation(f"{name[:6]} was {before[1]} and is {state}")
        if was_open and submitted != before[7]:
            raise Violation(f"{name[:6]} was open, and was claimed again")
        if state == "running" and seq != before[2] and self.world.inside:
            process = self.world.task.process
            if task == before[4] and self.world.processes[int(owner.split()[3])] is not process:
                raise Violation(f"{process.name} has said how far {name[:6]} is, which {owner} has")

    def _check_quotas(self, look: Callable[..., Any]) -> None:
        few = look("SELECT COUNT(*) FROM jobs WHERE caller = 'key:few' AND state IN ('queued', 'running')")[0][0]
        if few > OPEN_JOBS:
            raise Violation(f"{few} jobs of a caller are open, and the limit is {OPEN_JOBS}")
        for (used,) in look(
            "SELECT SUM(core_seconds) FROM charges WHERE owner = 'key:day' GROUP BY CAST(began / 86400 AS INTEGER)"
        ):
            if used > CORE_SECONDS:
                raise Violation(f"{used} core-seconds of a day are used, and the limit is {CORE_SECONDS}")

    def _gone(self, owner: str) -> bool:
        return not self.world.processes[int(owner.split()[3])].alive

    def _check_end(self) -> None:
        """When faults are over: every job has ended by name, and store, log and catalog hold."""
        oracle, cluster = self.oracle, self.cluster
        service = next(node.service for node in cluster.nodes if node.service is not None)
        for digest in sorted(oracle.owed):
            known, job = by_spec()[digest], service.ledger.get(digest)
            if job is None:
                raise Violation(f"the acknowledged post of {digest} is lost")
            self._check_job(known, job, service)
        report = fsck_module.fsck(service.store)
        bad = [
            one
            for one in report.findings
            if (one.error or one.kind in ("foreign", "unindexed")) and not self._half_revoked(one)
        ]
        if not oracle.rotten and [finding for finding in bad if finding.kind != "unindexed"]:
            raise Violation(f"fsck finds {bad[0]}")
        fsck_module.fsck(service.store, repair=True)
        again = fsck_module.fsck(service.store)
        kinds = ("revocation", "revoke the result again", "upload it again")  # what only a person mends
        if [one for one in again.findings if one.error and not any(words in one.message for words in kinds)]:
            raise Violation(f"fsck finds after its repair {again.findings}")
        told = {row[0] for row in cluster.database.look("SELECT subject FROM audit WHERE event = 'submission'")}
        if oracle.owed - told:
            raise Violation(f"the audit log has no submission of {oracle.owed - told}")
        head = audit_log.verify_log(service.ledger.engine).head
        if (head.seq, head.hash) != oracle.head and oracle.head != (0, ""):
            raise Violation(f"the audit log ends at {head} and not at {oracle.head}")
        for name, token in oracle.keys.items():
            if name in oracle.revoked_keys:
                with suppress(AccessRefused, NotFound):
                    service.register.revoke_withdrawn()
                    cluster.nodes[0].gate.identify(token.text.encode())  # type: ignore[union-attr]
                    raise Violation(f"the revoked key {name} is let in")
        for known in library()[:3]:  # a post heals what faults have left
            self._heal(service, known)
        self._check_catalog(service)

    def _half_revoked(self, finding: fsck_module.Finding) -> bool:
        """Whether a finding is of a revocation, begun and never acknowledged, that has one of its two records."""
        missing = finding.kind == "missing" and (
            finding.key.startswith("revoked/") or "which it repeats or rounds" in finding.message
        )
        return missing and not any(digest in finding.message for digest in self.oracle.revoked - self.oracle.half)

    def _taken_back(self) -> set[str]:
        """Results of which a record says that they were revoked, acknowledged or not."""
        names = {key[-69:-5] for key in self.cluster.medium.stored() if key.startswith("revoked/")}
        return self.oracle.revoked | (names if self.oracle.revoking else set())

    def _check_job(self, known: Known, job: SolveJob, service: Any) -> None:
        digest, oracle = known.spec.digest, self.oracle
        if not job.finished:
            raise Violation(f"the job {digest[:6]} has not ended")
        if job.state == "failed" and digest not in oracle.excused | oracle.cancelled:
            kind = (job.error or {}).get("type", "")
            taken_back = any(name in (job.error or {}).get("message", "") for name in self._taken_back())
            acts = oracle.acted.get(digest, set())
            excuse = {
                "gave_up": bool(acts & {"crash"})
                or any(
                    item.kind in ("!worker", "!scheduler", "!power", "!kill", "!medium") for item in self.plan.items
                ),
                "timeout": "hang" in acts or any(item.kind in ("!stop", "!window") for item in self.plan.items),
                "out_of_memory": "memory" in acts,
                "solve-failed": "fail" in acts,
                "certificate-error": "garbage" in acts,
                "internal": "bug" in acts,
                "not_stored": bool(acts & {"swap"}) or bool(oracle.deleted) or taken_back,
                "corrupt-object": bool(acts & {"stale", "garbage"}),
                "store-unavailable": any(item.kind == "!window" for item in self.plan.items),
                "revoked": taken_back,
                "not-found": oracle.swept,
            }.get(kind, False)
            if not excuse:
                raise Violation(f"the job {digest[:6]} has failed without a cause: {job.error}")
        if job.state == "cancelled" and digest not in oracle.cancelled:
            raise Violation(f"the job {digest[:6]} was cancelled, and nobody asked for it")
        if (
            job.state == "done"
            and digest not in oracle.excused | oracle.cancelled
            and not known.digests & (self._taken_back() | oracle.deleted)
        ):
            found = service.lookup(digest)
            if not isinstance(found, Result):
                raise Violation(f"the job {digest[:6]} is done, and its answer is {found}")
            self._seen(service, known, found, set(oracle.revoked))

    def _heal(self, service: Any, known: Known) -> None:
        end = self.world.now + 120.0
        while self.world.now < end:
            try:
                answer = service.obtain(known.spec)
            except Revoked:
                return
            if isinstance(answer, Result):
                self._seen(service, known, answer, set(self.oracle.revoked))
                return
            drive(service.engine.wait(known.spec.digest, 30.0))
            job = service.ledger.get(known.spec.digest)
            if job.state == "failed" and known.digests & self._taken_back():
                return
        raise Violation(f"{known.spec.digest} cannot be answered any more")

    def _check_catalog(self, service: Any) -> None:
        self.world.task.process.skew = 700.0  # so that nothing is young any more
        stored, rows = set[str](), dict[str, str]()
        for _ in range(30):  # a look that took long is followed by a longer pause
            self.world.park(6.0)
            service.catalog.catch_up()
            stored = {manifest.digest for manifest in service.store.index.manifests()}  # a late put may have come
            rows = dict(self.cluster.database.look("SELECT digest, standing FROM results"))
            if rows.keys() == stored:
                break
        if service.catalog.whole and stored - rows.keys() and not self.oracle.rotten:
            raise Violation(f"the catalog lacks {stored - rows.keys()}")
        if stored and not set(rows) <= stored:
            raise Violation(f"the catalog has {set(rows) - stored}, which the store has not")
        for digest in self.oracle.revoked & rows.keys():
            if rows[digest] != "revoked":
                raise Violation(f"the catalog lists the revoked {digest}")


def play(plan: Plan) -> Run:
    """Run a plan; raise what does not hold."""
    with TemporaryDirectory(prefix="simulation.", dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        run = Run(plan, Path(folder))
        try:
            run.play()
        except BaseException as error:
            error.run = run  # type: ignore[attr-defined]
            raise
        return run


def fault_count(run: Run) -> int:
    return len(run.cluster.faults.fired)


def shortest(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """Return a plan with as few items as still fail, by delta debugging."""
    items, parts = plan.items, 2
    while len(items) >= 2:
        size = -(-len(items) // parts)
        for first in range(0, len(items), size):
            rest = items[:first] + items[first + size :]
            if fails(replace(plan, items=rest)):
                items, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(len(items), 2 * parts)
    return replace(plan, items=items)
