"""Shared settings: hypothesis without luck, and the published vectors."""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock
from uuid import uuid4

import absl.logging
import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from factorize.encoding import is_digest

if TYPE_CHECKING:
    from bucket_server import BucketServer
    from command_line import CommandLine
    from playwright.sync_api import Browser
    from postgres_server import PostgresServer
    from servers import LiveService

# Before numpy is imported, here and in the processes that tests start: tests run side by side, one for each processor, and
# further threads of BLAS would only wait for each other, seven times as long as the work takes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Nothing that tests import or start may read or fill the user's own cache; there may be none.
_CACHE = tempfile.TemporaryDirectory(prefix="factorize-cache-")
os.environ["FACTORIZE_CACHE"] = _CACHE.name

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("repeatable")
# Hypothesis also draws the constants that it reads in the modules loaded so far. Those differ with the order of the tests,
# and so would the examples of a repeatable profile.
mock.patch.object(providers, "is_local_module_file", return_value=False).start()

# dp_accounting brings absl, whose handler closes the stream that it was made with when a server sets up its logging. That
# would be pytest's own capture; the stream of the process is never closed.
absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__

# Noise is keyed by seed and digest, and a digest follows the last bits of the processor's BLAS. DIGEST_SALT=<any text> keys
# it as another processor would; no test may depend on which noise a fixed seed draws.
if DIGEST_SALT := os.environ.get("DIGEST_SALT"):
    from factorize.noise import normals

    def _salted(generator: str, seed: int, context: str, _plain: Any = normals.keyed) -> bytes:
        return _plain(generator, seed, f"{context}{DIGEST_SALT}" if is_digest(context) else context)

    normals.keyed = _salted

DATA = Path(__file__).parent / "data"
SLOW = frozenset((Path(__file__).parent / "support" / "slow_tests.txt").read_text().split())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes long, which `make check` leaves out, but for what is marked `always`."""
    for item in items:
        if item.nodeid.partition("[")[0] in SLOW and not item.get_closest_marker("always"):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while modules are imported, and later pass over the million objects that they have made.

    Each refusal of a second generator of a noise begins with a look at all others.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def twins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two generators of one noise be alive, since tests compare their bits; not in a test marked `single_use`.

    No test sees which noise another one has used.
    """
    if single_use := sys.modules.get("factorize.noise.single_use"):
        monkeypatch.setattr(single_use, "_ROWS", {})
        if not request.node.get_closest_marker("single_use"):
            monkeypatch.setattr(single_use.NoiseUse, "_others", lambda own: [])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer a report for `tests/support/slow_tests.py`, which does not depend on what else a machine does."""
    parser.addoption("--seconds", metavar="FILE", help="append what each test takes: processor seconds, clock, name")


SHARED: dict[pytest.FixtureDef[Any], float] = {}
"""Processor seconds of fixtures that the tests of a file share, where they take more than one."""


def _processor() -> float:
    """Seconds of this process and those that it has waited for."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    """Measure a shared fixture, which costs whatever test is left of those that use it."""
    began = _processor()
    result = yield
    if fixturedef.scope == "module" and _processor() - began > 1:
        SHARED[fixturedef] = _processor() - began
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Function) -> Generator[None, object, object]:
    """Measure a test with its fixtures, also one that another test has had made, and the processes that it has waited for."""
    used = {each for chain in item._fixtureinfo.name2fixturedefs.values() for each in chain}
    before = max((SHARED.get(each, 0.0) for each in used), default=0.0)
    began, clock = _processor(), time.monotonic()
    result = yield
    if target := item.config.getoption("--seconds"):
        with open(target, "a") as report:
            report.write(f"{_processor() - began + before:.3f} {time.monotonic() - clock:.3f} {item.nodeid}\n")
    return result


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees what another has downloaded, nor the user's files; most have no use for a folder."""
    monkeypatch.setenv("FACTORIZE_CACHE", str(tmp_path_factory.getbasetemp() / uuid4().hex))


@pytest.fixture(scope="session")
def vectors() -> dict[str, Any]:
    """The test vectors of the formulas, by id."""
    return json.loads((DATA / "vectors.json").read_text())


@pytest.fixture(scope="session")
def reference_values() -> dict[str, dict[str, Any]]:
    """Certified optima of small problems, by id."""
    return {entry["id"]: entry for entry in json.loads((DATA / "reference-values.json").read_text())["entries"]}


@pytest.fixture(scope="session")
def live_service(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[LiveService]:
    """A running service that tests share; it solves in real child processes. ON_A_CLUSTER=1 makes it a whole cluster."""
    if os.environ.get("ON_A_CLUSTER"):
        from cluster_client import shared_cluster

        with shared_cluster(*(request.getfixturevalue(name) for name in ("postgres", "bucket_server"))) as balanced:
            yield balanced
        return
    from servers import serving

    with serving(tmp_path_factory.mktemp("live") / "store") as live:
        yield live


@pytest.fixture
def slow_service(tmp_path: Path) -> Iterator[LiveService]:
    """A service whose solves go on until `slow_service.go()`."""
    from servers import SLOW_SOLVER, serving

    with serving(tmp_path / "store", solver=SLOW_SOLVER) as live:
        yield live


@pytest.fixture(scope="session")
def bucket_server() -> Iterator[BucketServer]:
    """A running S3 server that tests share, each with buckets of its own."""
    from bucket_server import running

    with running() as server:
        yield server


@pytest.fixture
def bucket(bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store in a new bucket."""
    for name, value in bucket_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"{bucket_server.bucket()}/some/prefix"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless browser that the tests of a file share, each with a context of its own.

    Of a file, since an event loop runs in this thread while it is open, which no test of another kind can have.
    Where none is installed the tests that need it are skipped, and say so; `REQUIRE_BROWSER=1` makes them fail.
    """
    from browser import chromium, running

    if chromium() is None and not os.environ.get("REQUIRE_BROWSER"):
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with running() as found:
        yield found


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running PostgreSQL server that tests share, each with databases of its own.

    Where none is installed the tests that need it are skipped, and say so; `REQUIRE_POSTGRES=1` makes them fail.
    """
    from postgres_server import programs, running

    if programs() is None and not os.environ.get("REQUIRE_POSTGRES"):
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    with running() as server:
        yield server


@pytest.fixture
def within(tmp_path: Path) -> CommandLine:
    """Commands that run in a folder and with a default store of the test's own."""
    from command_line import CommandLine

    return CommandLine(tmp_path, FACTORIZE_STORE=str(tmp_path / "store"))


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of the test's own, of each kind that a ledger can be in."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/service/jobs.sqlite"
    return str(request.getfixturevalue("postgres").database())
