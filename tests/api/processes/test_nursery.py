"""The nursery and what it forks: what a child has and has not, and what becomes of it when the nursery dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from servers import serving

from factorize.api import proof
from factorize.api.jobs.ending import Ending, SolveEnding
from factorize.api.jobs.supervisor import Request, run
from factorize.api.processes import nursery
from factorize.api.processes.nursery import NURSERY_OF_THIS_PROCESS, Nursery
from factorize.api.processes.warming import Warmth, one_thread
from factorize.api.settings import Settings
from factorize.storage.store import open_store

pytestmark = pytest.mark.skipif(not nursery.SUPPORTED, reason="children are forked on Linux only")

SPEC = '{"workload":{"kind":"prefix","n":12}}'
DONE = f"""print('{{"event": "done", "digest": "{"ab" * 32}"}}', flush=True)"""


@pytest.fixture(scope="module", autouse=True)
def _one_nursery() -> Iterator[None]:
    """Keep it for all tests of this file, and see it end. It may have to compile on a machine that others load."""
    NURSERY_OF_THIS_PROCESS.hold()
    with pytest.MonkeyPatch.context() as patient:
        patient.setattr(nursery, "_PATIENCE_SECONDS", 600.0)
        yield
    NURSERY_OF_THIS_PROCESS.release()


def ending_of(request: Request) -> SolveEnding:
    return run(request, report=lambda event: None, cancelled=lambda: False)


def body(lines: str, *, threads: int = 1) -> Request:
    text = "import json, os, sys\n" + textwrap.dedent(lines) + "\n" + DONE
    return Request("0" * 64, "{}", text, 64, 600, threads, module="forked_body")


def write(path: Path, value: str) -> str:
    return f"found = json.dumps({value}); open({str(path)!r}, 'w').write(found)"


def lines_of(path: Path, body_value: str, *, threads: int = 1, before: str = "") -> str:
    """What an expression is worth in a forked child."""
    outcome = ending_of(body(textwrap.dedent(before) + "\n" + write(path, body_value), threads=threads))
    assert outcome.ending is Ending.DONE, outcome
    return path.read_text()


def test_what_the_nursery_has_reserved_is_not_taken_from_what_a_child_may_reserve():
    # 64 MB, and 512 + 64 for libraries and stacks of which a Python of its own takes 160.
    assert ending_of(body("block = bytearray(460 << 20)")).ending is Ending.DONE
    outcome = ending_of(body("block = bytearray(660 << 20)"))
    assert outcome.error is not None and outcome.error["type"] == "out_of_memory", outcome


def test_a_solve_and_its_proof_give_the_same_result_forked_and_started(tmp_path):
    found, proofs = [], []
    for forked in (True, False):
        store = open_store(tmp_path / str(forked))
        outcome = ending_of(Request("0" * 64, SPEC, store.url, 256, 120, 1, forked=forked))
        assert outcome.ending is Ending.DONE and outcome.digest is not None, outcome
        found.append(store.load(outcome.digest).rows("C", 0, 12).tobytes())
        proof = store.manifest(outcome.digest)["files"][0]["proof"]
        proofs.append([proof[name] for name in ("claims", "checked", "not_checked", "release")])
    assert found[0] == found[1] and proofs[0] == proofs[1]


def test_a_child_has_its_streams_and_its_guard_and_no_other_descriptor(tmp_path):
    asked = "sorted(int(fd) for fd in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + fd))"
    assert lines_of(tmp_path / "found", asked) == "[0, 1, 2, 3]"


def test_a_child_is_in_a_session_of_its_own_and_leads_its_group(tmp_path):
    found = lines_of(tmp_path / "found", "[os.getsid(0), os.getpgid(0), os.getpid(), os.getppid()]")
    session, group, child, guard = map(int, found.strip("[]").split(","))
    assert session == guard and group == child and session != os.getsid(0)


@pytest.mark.parametrize("threads", [1, 2])
def test_blas_of_a_child_has_the_threads_that_it_was_admitted_with(tmp_path, threads):
    use = "import threadpoolctl, numpy as np; a = np.ones((400, 400)); a @ a"
    pools = "sorted({p['num_threads'] for p in threadpoolctl.threadpool_info()})"
    assert lines_of(tmp_path / "pools", pools, threads=threads, before=use) == f"[{threads}]"
    started = int(lines_of(tmp_path / "tasks", "len(os.listdir('/proc/self/task'))", threads=threads, before=use))
    assert (started > 1) == (threads > 1)


def test_temporary_files_of_a_child_are_in_the_folder_that_its_supervisor_removes(tmp_path):
    found = lines_of(tmp_path / "found", "[tempfile.gettempdir(), os.environ['TMPDIR']]", before="import tempfile")
    folder, given = json.loads(found)
    assert folder == given and not Path(folder).exists()


def test_everything_is_imported_before_the_child_begins(tmp_path):
    names = ("numba", "scipy.linalg", "factorize.solvers.solving", "factorize.exact.file", "factorize.storage.store")
    for name in names:
        assert lines_of(tmp_path / "found", f"{name!r} in sys.modules") == "true", name


def test_a_child_asks_for_a_proof_beside_it_and_for_nothing_else(tmp_path):
    ask = """
        from factorize.api.isolated import PROVE
        from factorize.api.processes.sibling import beside
        refused = beside("this", "")
        proof = beside(PROVE, json.dumps({"path": "/no/such/file", "store": "s", "strict": False}) + chr(10))
    """
    value = "[refused.returncode, refused.stdout, proof.returncode, json.loads(proof.stdout)['event']]"
    assert lines_of(tmp_path / "found", value, before=ask) == '[126, "", 1, "failed"]'


def test_what_runs_outlives_a_nursery_that_is_killed_and_the_next_child_gets_another(tmp_path):
    gate, begun = tmp_path / "gate", tmp_path / "begun"
    outcomes: list[SolveEnding] = []
    wait = f"""
        import time
        open({str(begun)!r}, "w").close()
        while not os.path.exists({str(gate)!r}): time.sleep(0.01)
    """
    thread = threading.Thread(target=lambda: outcomes.append(ending_of(body(wait))))
    thread.start()
    deadline = time.monotonic() + 600
    while not begun.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first = NURSERY_OF_THIS_PROCESS.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    # Asked at once, it has loaded what every child needs before it forks one.
    assert lines_of(tmp_path / "loaded", "{'numba', 'scipy.linalg'} <= set(sys.modules)") == "true"
    assert NURSERY_OF_THIS_PROCESS.pid not in (None, first)
    gate.touch()
    thread.join(600)
    assert [outcome.ending for outcome in outcomes] == [Ending.DONE]


def test_a_nursery_that_refuses_leaves_the_child_to_a_python_of_its_own(monkeypatch, tmp_path):
    def refuse(_asking: object, _order: bytes, stdin: int) -> None:
        assert os.read(stdin, 1 << 20)  # as a child does that comes too late
        raise nursery._RefusedError("a library has started threads")

    monkeypatch.setattr(nursery, "_forked", refuse)
    store = open_store(tmp_path)
    assert ending_of(Request("0" * 64, SPEC, store.url, 256, 120, 1)).ending is Ending.DONE


def test_a_nursery_that_is_busy_is_not_waited_for_and_asked_again_when_it_has_answered(monkeypatch):
    own = Nursery()
    try:
        own.start()
        pid = own.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(nursery, "_PATIENCE_SECONDS", 0.05)
        for _ in range(2):  # asked in vain, then not asked
            with open(os.devnull) as stdin:
                assert own.fork("forked_body", threads=1, data_bytes=0, variables={}, stdin=stdin.fileno()) is None
        monkeypatch.setattr(nursery, "_PATIENCE_SECONDS", 600.0)
        os.kill(pid, signal.SIGCONT)
        deadline, guard = time.monotonic() + 600, None
        while guard is None:
            assert time.monotonic() < deadline
            with open(os.devnull) as stdin:
                guard = own.fork("forked_body", threads=1, data_bytes=0, variables={}, stdin=stdin.fileno())
        assert guard.wait(600) == 1 and own.pid == pid  # the child has found no question
        guard.close()
    finally:
        own.close()


def test_threads_are_seen():
    before = threading.Event()
    thread = threading.Thread(target=before.wait)
    thread.start()
    try:
        assert not one_thread()
    finally:
        before.set()
        thread.join()


def test_rehearsals_end_and_leave_one_thread(tmp_path):
    """Every piece succeeds: a spec that a release does not know any more would silently warm nothing."""
    run_all = "from factorize.api.processes.warming import Warmth, one_thread\nfor p in Warmth()._all_pieces(): p()"
    assert lines_of(tmp_path / "found", "one_thread()", before=run_all) == "true"


COLD = f"""
import sys
sys.path[:] = {sys.path!r}
from factorize.api.processes import family, nursery_process, warming
family.PROVE = "forked_body"
warming.Warmth._all_pieces = lambda self: iter(())
sys.exit(nursery_process.main())
"""


@pytest.fixture
def cold(monkeypatch) -> Iterator[Nursery]:
    """A nursery of its own that loads nothing, so that it has a family waiting at once."""
    monkeypatch.setattr(nursery, "child_command", lambda _module: (sys.executable, "-I", "-c", COLD))
    own = Nursery()
    own.start()
    yield own
    own.close()


def waiting(own: Nursery, *, besides: int = 0) -> list[psutil.Process]:
    """The guard that waits for an order, and its child and the proof's process."""
    deadline = time.monotonic() + 600
    while True:
        for guard in psutil.Process(own.pid).children():
            members = sorted(guard.children(), key=lambda member: member.pid)
            if guard.pid != besides and len(members) == 2:
                return [guard, *members]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def forked_by(own: Nursery, path: Path, lines: str = DONE) -> nursery.ForkedGuard:
    path.write_text(json.dumps({"store": lines}) + "\n")
    with path.open("rb") as stdin:
        guard = own.fork("forked_body", threads=1, data_bytes=0, variables={}, stdin=stdin.fileno())
    assert guard is not None
    return guard


def test_a_family_is_forked_ahead_and_carries_out_one_order(cold, tmp_path):
    family = waiting(cold)
    guard = forked_by(cold, tmp_path / "asked")
    assert guard.pid == family[0].pid and guard.wait(600) == 0, guard.streams[1].readall()
    assert json.loads(guard.streams[0].readall())["event"] == "done"
    guard.close()
    waiting(cold, besides=guard.pid)
    assert not psutil.wait_procs(family, timeout=600)[1]


def test_a_nursery_says_that_it_loads_until_it_has(monkeypatch, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    slow = COLD.replace("iter(())", f"iter([lambda: open({str(gate)!r}).read()])")
    monkeypatch.setattr(nursery, "child_command", lambda _module: (sys.executable, "-I", "-c", slow))
    own = Nursery()
    assert not own.loads
    own.start()
    try:
        assert own.loads
        gate.write_text("go on")
        waiting(own)
        assert not own.loads
    finally:
        own.close()
    assert not own.loads


def test_the_last_word_of_a_process_beside_is_enough_and_its_end_is_awaited_before_the_next(cold, tmp_path):
    gate, found = tmp_path / "gate", tmp_path / "found"
    stay = f"""
import json, os, time
print(json.dumps({{"event": "done", "pid": os.getpid()}}), flush=True)
while not os.path.exists({str(gate)!r}):
    time.sleep(0.01)
"""
    ask = f"""
import json
from factorize.api.processes.sibling import beside
first = beside("forked_body", json.dumps({{"store": {stay!r}}}) + chr(10))
pid = json.loads(first.stdout)["pid"]
lives = open(f"/proc/{{pid}}/stat").read().split()[2] != "Z"
open({str(gate)!r}, "w").close()
second = beside("forked_body", json.dumps({{"store": "raise SystemExit(7)"}}) + chr(10))
open({str(found)!r}, "w").write(json.dumps([first.returncode, lives, second.returncode, second.stdout]))
"""
    guard = forked_by(cold, tmp_path / "asked", ask)
    assert guard.wait(600) == 0, guard.streams[1].readall()
    guard.close()
    assert json.loads(found.read_text()) == [0, True, 7, ""]


def test_a_child_that_ends_before_it_has_heard_of_the_end_beside_it_ends_well(cold, tmp_path):
    said = "import json; print(json.dumps({'event': 'done'}), flush=True)"
    ask = f"""
import json, select
from factorize.api.processes import sibling
assert sibling.beside("forked_body", json.dumps({{"store": {said!r}}}) + chr(10)).returncode == 0
select.select([sibling._guard], [], [])
"""
    guard = forked_by(cold, tmp_path / "asked", ask)
    assert guard.wait(600) == 0, guard.streams[1].readall()
    guard.close()


@pytest.mark.parametrize("number", [None, signal.SIGKILL])
def test_a_family_without_an_order_ends_with_its_nursery(cold, number):
    family = waiting(cold)
    if number is None:
        cold.close()
    else:
        os.kill(cold.pid, number)
    assert not psutil.wait_procs(family, timeout=600)[1]


def test_a_family_that_was_killed_is_replaced_and_one_whose_proof_was_killed_asks_for_another(cold, tmp_path):
    family = waiting(cold)
    family[0].kill()
    assert not psutil.wait_procs(family, timeout=600)[1]
    guard = forked_by(cold, tmp_path / "first")
    assert guard.pid != family[0].pid and guard.wait(600) == 0
    guard.close()
    family = waiting(cold, besides=guard.pid)
    proof = family[2]
    proof.kill()
    deadline = time.monotonic() + 600
    while proof.status() != psutil.STATUS_ZOMBIE:  # until its guard looks
        assert time.monotonic() < deadline
        time.sleep(0.01)
    ask = """
        from factorize.api.processes.sibling import beside
        proof = beside("forked_body", json.dumps({"store": "print('checked')"}) + chr(10))
        assert (proof.returncode, proof.stdout) == (0, "checked" + chr(10)), proof
    """
    guard = forked_by(cold, tmp_path / "second", "import json\n" + textwrap.dedent(ask) + DONE)
    assert guard.pid == family[0].pid and guard.wait(600) == 0, guard.streams[1].readall()
    guard.close()


def test_a_guard_hears_of_an_end_before_it_is_asked_for_more():
    both = """
        import os, signal
        from factorize.api.processes.reaper import Guard

        guard, heard = Guard(), []
        (watch, _watching), (asking, question) = os.pipe(), os.pipe()
        guard.start(signal.pause)
        if (other := os.fork()) == 0:
            os._exit(3)
        os.waitid(os.P_PID, other, os.WEXITED | os.WNOWAIT)  # it is dead, and the guard has not looked
        os.write(question, b"?")

        def asked():
            heard.append(os.read(asking, 1))
            os.kill(guard.child, signal.SIGKILL)

        status = guard.wait(watch, lambda: asking, asked, lambda pid, status: heard.append((pid == other, status)))
        assert heard == [(True, 3 << 8), b"?"] and status == signal.SIGKILL, (heard, status)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(both)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_pages_are_copied_ahead_and_what_is_in_them_stays(tmp_path):
    fill = """
        from factorize.api.processes.pages import copy_ahead, written
        import numpy as np
        held = np.arange(200_000.0)
        found = written(lambda: held.__iadd__(1.0))
        first = held.ctypes.data
        covered = sum(min(a + n, first + held.nbytes) - max(a, first) for a, n in found if a < first + held.nbytes and a + n > first)
        copy_ahead(found)
    """
    value = "[not found or covered == held.nbytes, bool((held == np.arange(200_000.0)).all())]"
    assert lines_of(tmp_path / "found", value, before=fill) == "[true, true]"


def test_a_range_that_is_gone_keeps_no_other_from_being_copied(tmp_path):
    fill = """
        import mmap, os, resource
        import numpy as np
        from factorize.api.processes.pages import copy_ahead

        def faults_of_writing(ahead):
            held = np.ones(131_072)
            reading, writing = os.pipe()
            if (pid := os.fork()) == 0:
                if ahead:
                    start = -(-held.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
                    copy_ahead([(mmap.PAGESIZE, mmap.PAGESIZE), (start, held.nbytes - 2 * mmap.PAGESIZE)])
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                held += 1.0
                os.write(writing, str(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before).encode())
                os._exit(0)
            os.waitpid(pid, 0)
            return int(os.read(reading, 99))

        without, ahead = faults_of_writing(False), faults_of_writing(True)
        populates = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) >= (5, 14)
    """
    value = "[not populates or ahead < max(without / 4, 16), without, ahead]"
    assert lines_of(tmp_path / "found", value, before=fill).startswith("[true"), (tmp_path / "found").read_text()


def test_memory_is_gathered_into_large_pages_and_what_is_in_it_stays(tmp_path):
    fill = """
        import numpy as np
        from factorize.api.processes.pages import gather

        def large():
            with open("/proc/self/smaps_rollup") as rolled:
                return next(int(line.split()[1]) for line in rolled if line.startswith("AnonHugePages:"))

        held = np.arange(2_000_000.0)
        before = large()
        gather()
        gathers = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) >= (6, 1)
        switch = "/sys/kernel/mm/transparent_hugepage/enabled"
        gathers &= os.path.exists(switch) and "[never]" not in open(switch).read()
    """
    value = (
        "[bool((held == np.arange(2_000_000.0)).all()), not gathers or large() - before >= 12 << 10, before, large()]"
    )
    found = lines_of(tmp_path / "found", value, before=fill)
    assert found.startswith("[true, true"), found


def test_only_the_process_of_the_proof_makes_itself_ready_for_one_while_it_waits(monkeypatch):
    called: list[bool] = []
    monkeypatch.setattr(proof, "make_ready", lambda: called.append(True))
    for child, times in ((True, 0), (False, 1)):
        Warmth().make_ready(child=child)
        assert len(called) == times
    monkeypatch.delitem(sys.modules, "factorize.api.proof")
    Warmth().make_ready(child=False)  # nothing is loaded for it
    assert len(called) == 1


def test_the_solve_and_the_proof_have_pages_of_their_own_copied_ahead(tmp_path):
    look = """
        from factorize.api.processes.warming import Warmth
        warmth = Warmth()
        for piece in warmth._all_pieces(): piece()
        told = [sum(size for _, size in warmth._pages[child]) for child in (True, False)]
        tells = any(told)
    """
    found = lines_of(tmp_path / "found", "[not tells or min(told) > 1 << 20, told]", before=look)
    assert found.startswith("[true"), found


def test_a_nursery_ends_with_its_last_holder_and_starts_at_the_next_request():
    own = Nursery()
    own.hold()
    own.hold()
    own.start()
    pid = own.pid
    assert pid is not None
    own.release()
    assert psutil.pid_exists(pid)
    own.release()
    assert own.pid is None and not psutil.pid_exists(pid)


def test_a_service_that_is_told_not_to_fork_has_no_nursery(tmp_path, monkeypatch):
    def none(*_: object, **__: object) -> None:
        raise AssertionError("the nursery was asked")

    monkeypatch.setattr(Nursery, "fork", none)
    with serving(Settings(store=str(tmp_path / "store"), fork_children=False)) as live:
        manifest = live.solve({"workload": {"kind": "prefix", "n": 5}})
    assert manifest["files"][0]["proof"]["claims"]
