"""The training job's side against a server that breaks its answers: right bytes or an error, never a wrong file."""

from __future__ import annotations

import copy
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile_server import (
    HostileService,
    answering,
    chunked_cut,
    close_delimited,
    cut,
    flip,
    honest,
    make,
    relabelled,
    reset,
    shortened,
    stall,
    swapped,
    vanish,
)
from servers import serving

from factorize.client import Event, Service, connect, fetch
from factorize.encoding import sha256
from factorize.errors import (
    Cancelled,
    CorruptObject,
    InvalidParameter,
    InvalidSpec,
    ServiceError,
    ServiceUnreachable,
    SolveFailed,
    StoreUnavailable,
)
from factorize.factors.factor_file import load
from factorize.format.manifest import manifest_digest
from factorize.format.tensors import MATRIX_NAMES

N = 96
SPEC = {"workload": {"kind": "prefix", "n": N}, "mechanism": {"kind": "square_root"}}


def patience(fault: Any = None) -> float:
    """Seconds to wait for a byte: few where the fault is a silence, and then for honest answers of a loaded machine too."""
    return 0.6 if getattr(fault, "__qualname__", "").startswith("stall") else 60.0


@pytest.fixture(scope="module")
def dense():
    return make(N, dense=True)


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch):
    monkeypatch.setitem(Service.__init__.__kwdefaults__, "patience", 1.0)


@pytest.fixture
def much_patience(_little_patience, monkeypatch):
    """For as many requests as it takes until a loaded machine answers one in time."""
    monkeypatch.setitem(Service.__init__.__kwdefaults__, "patience", 600.0)


@pytest.fixture(scope="module")
def service(tmp_path_factory, dense):
    """A service that has the factorization and solves nothing."""
    with serving(tmp_path_factory.mktemp("behind") / "store", solver="no_solver") as running:
        running.store.put(dense)
        yield running


@pytest.fixture(scope="module")
def data(service, dense) -> bytes:
    """The file that it serves."""
    return b"".join(service.store.blob(file_of(service, dense)["sha256"]).read())


@pytest.fixture
def server(service):
    with HostileService(service) as hostile:
        yield hostile


def file_of(service, factorization) -> dict:
    return service.store.manifest(factorization.digest)["files"][0]


def right(path: Path, dense) -> bool:
    return load(path).digest == dense.digest


class TestFetch:
    def test_by_spec_digest_and_spec_digest(self, server, dense, tmp_path):
        for number, source in enumerate([SPEC, json.dumps(SPEC), dense.spec, dense.digest, dense.spec_digest]):
            path = fetch(source, url=server.url, to=tmp_path / f"{number}.safetensors")
            assert right(path, dense)
            assert not path.with_name(path.name + ".part").exists()

    def test_resumes_where_the_connection_was_cut(self, server, dense, tmp_path):
        server.plan("blob", cut(1000), reset(3000), cut(40_000))
        assert right(fetch(dense.digest, url=server.url, to=tmp_path / "f"), dense)
        ranges = [headers.get("Range") for _, path, headers in server.seen if "/blobs/" in path]
        assert ranges[0] is None and ranges[1] == "bytes=1000-" and len(ranges) == 4

    def test_resumes_a_part_file_of_an_earlier_process(self, server, dense, data, tmp_path):
        (tmp_path / "f.part").write_bytes(data[:5000])
        assert right(fetch(dense.digest, url=server.url, to=tmp_path / "f"), dense)
        headers = server.seen[-1][2]
        assert headers["Range"] == "bytes=5000-"
        assert "If-Range" not in headers, "the web server of a mirror has other ETags, and would begin anew each time"

    @pytest.mark.parametrize("left", ["of another file", "longer than the file"])
    def test_part_file_that_is_no_start_of_the_file(self, server, dense, data, tmp_path, left):
        (tmp_path / "f.part").write_bytes(b"x" * 5000 if left == "of another file" else data + b"x")
        assert right(fetch(dense.digest, url=server.url, to=tmp_path / "f"), dense)

    def test_server_that_starts_over_and_is_cut_each_time_is_given_up(self, server, dense, data, tmp_path):
        server.plan("blob", *[lambda handler, *_: cut(5000)(handler, 200, {}, data)] * 300)
        with pytest.raises(ServiceUnreachable, match="was cut"):
            fetch(dense.digest, url=server.url, to=tmp_path / "f")

    def test_server_that_ignores_the_range_starts_over(self, server, dense, data, tmp_path):
        (tmp_path / "f.part").write_bytes(data[:5000])
        server.plan("blob", lambda handler, *_: honest(handler, 200, {}, data))
        assert right(fetch(dense.digest, url=server.url, to=tmp_path / "f"), dense)
        assert len(server.paths("/blobs/")) == 1

    @pytest.mark.parametrize(
        "fault",
        [flip(0), flip(5), flip(-1), flip(9000), swapped(4096), shortened(1), shortened(-1), stall(2000), cut(0)]
        + [close_delimited(500), chunked_cut(700), vanish, relabelled(Content_Range="bytes 0-1/2", Content_Length="7")],
    )
    @pytest.mark.usefixtures("much_patience")
    def test_one_fault_is_survived(self, server, dense, tmp_path, fault):
        server.plan("blob", fault)
        assert right(fetch(dense.digest, url=server.url, to=tmp_path / "f", timeout=patience(fault)), dense)

    def test_wrong_bytes_every_time_leave_no_file(self, server, dense, tmp_path):
        server.plan("blob", *[flip(9000)] * 3)
        with pytest.raises(CorruptObject, match="3 times"):
            fetch(dense.digest, url=server.url, to=tmp_path / "f")
        assert not list(tmp_path.glob("f*"))
        assert right(fetch(dense.digest, url=server.url, to=tmp_path / "f"), dense)

    @pytest.mark.parametrize("fault", [stall(0), vanish, close_delimited(10), shortened(1)])
    def test_no_progress_for_long_is_an_error(self, server, dense, tmp_path, fault):
        server.plan("blob", *[fault] * 12)
        with pytest.raises(ServiceUnreachable):
            fetch(dense.digest, url=server.url, to=tmp_path / "f", timeout=patience(fault))
        assert not (tmp_path / "f").exists()

    @pytest.mark.parametrize(
        "location", ["file:///etc/passwd", "/elsewhere", "ftp://host/file", "http://127.0.0.1:1/x"]
    )
    def test_no_other_address_is_followed_and_no_file_is_left(self, server, dense, tmp_path, location):
        server.plan("blob", *[lambda handler, *_: honest(handler, 307, {"Location": location}, b"")] * 12)
        with pytest.raises((ServiceError, ServiceUnreachable), match="does not follow|cannot be reached"):
            fetch(dense.digest, url=server.url, to=tmp_path / "f")
        assert not (tmp_path / "f").exists()

    def test_refused_bytes_are_not_asked_for_again(self, server, dense, tmp_path):
        server.plan(
            "blob", answering({"type": "corrupt-object", "title": "Corrupt object", "detail": "fails its digest"}, 503)
        )
        with pytest.raises(ServiceError, match="Corrupt object: fails its digest") as caught:
            fetch(dense.digest, url=server.url, to=tmp_path / "f")
        assert (caught.value.status, caught.value.problem["type"]) == (503, "corrupt-object")
        assert len(server.paths("/blobs/")) == 1

    def test_valid_file_of_another_factorization(self, service, server, dense, tmp_path):
        """Length and sha256 agree with `files`, which the manifest's digest does not cover; the content does not."""
        other = make(32)
        service.store.put(other)
        server.plan("status", answering({**dense.manifest, "files": [file_of(service, other)]}))
        with pytest.raises(CorruptObject, match=f"contains {other.digest}"):
            fetch(dense.digest, url=server.url, to=tmp_path / "f")
        assert not list(tmp_path.glob("f*"))

    def test_file_whose_matrix_is_not_its_manifests(self, server, dense, data, tmp_path):
        changed = data[:-1] + bytes([data[-1] ^ 1])
        server.plan("blob", lambda handler, *_: honest(handler, 200, {}, changed))
        file = {"sha256": sha256(changed), "bytes": len(changed)}
        server.plan("status", answering({**dense.manifest, "files": [file]}))
        with pytest.raises(CorruptObject, match="the bytes of C"):
            fetch(dense.digest, url=server.url, to=tmp_path / "f")

    def test_right_file_is_not_loaded_twice_and_a_wrong_one_is_replaced(self, server, dense, tmp_path):
        target = tmp_path / "f"
        fetch(dense.digest, url=server.url, to=target)
        fetch(dense.digest, url=server.url, to=target)
        assert len(server.paths("/blobs/")) == 1
        target.write_bytes(b"x" * target.stat().st_size)
        assert right(fetch(dense.digest, url=server.url, to=target), dense)

    def test_two_downloads_into_one_file(self, server, dense, tmp_path):
        server.plan("blob", stall(2000))
        first = threading.Thread(target=lambda: fetch(dense.digest, url=server.url, to=tmp_path / "f"))
        first.start()
        while server.plans["blob"]:  # the file is locked before the bytes are asked for
            time.sleep(0.01)
        with pytest.raises(InvalidParameter, match="another download"):
            fetch(dense.digest, url=server.url, to=tmp_path / "f")
        server.release.set()
        first.join()
        assert right(tmp_path / "f", dense)

    def test_target_that_cannot_be_written(self, server, dense, tmp_path):
        with pytest.raises(InvalidParameter, match="folder"):
            fetch(dense.digest, url=server.url, to=tmp_path)
        with pytest.raises(StoreUnavailable, match="cannot be written"):
            fetch(dense.digest, url=server.url, to=tmp_path / "missing" / "f")


class TestManifest:
    @pytest.mark.parametrize("fault", [flip(200), cut(300), close_delimited(300), shortened(20), swapped(100)])
    def test_broken_manifest_is_an_error(self, server, dense, fault):
        server.plan("status", *[fault] * 9)
        with pytest.raises((CorruptObject, ServiceError)):
            Service(server.url, pause=0.0).manifest(dense.digest)

    @pytest.mark.parametrize(
        "field, value",
        [
            ("participation", {"kind": "fixed_epochs", "epochs": 4}),
            ("workload", {"kind": "prefix", "n": N // 2}),
            ("objective", {"kind": "max"}),
            ("tolerance", 1e-12),
            ("optimize_for", {"kind": "identity", "n": N}),
        ],
    )
    def test_answer_to_another_question(self, server, dense, field, value):
        """A self-consistent manifest of another spec, under the spec digest that was asked for."""
        server.plan("post", answering(dense.manifest))
        with pytest.raises(CorruptObject, match=f"a different spec: {field}"):
            Service(server.url).manifest({**SPEC, field: value})

    def test_lowered_sensitivity_does_not_hash_or_is_another_digest(self, server, dense):
        forged = copy.deepcopy(dense.manifest)
        stated = forged["certificate"]["sensitivity"]
        stated["value"] /= 2
        stated["hex"] = stated["value"].hex()
        server.plan("status", answering(forged))
        with pytest.raises(CorruptObject, match="its own digest"):
            Service(server.url).manifest(dense.digest)
        forged["digest"] = manifest_digest(forged)
        server.plan("status", answering(forged))
        with pytest.raises(CorruptObject, match="requested"):
            Service(server.url).manifest(dense.digest)

    def test_equal_meanings_and_a_smaller_tolerance_are_answers(self, server, dense):
        folded = {**SPEC, "participation": {"kind": "fixed_epochs", "epochs": 1}}
        assert Service(server.url).manifest(folded)["digest"] == dense.digest
        for other in ({"workload": {"kind": "prefix", "n": N}}, {**SPEC, "tolerance": 1e-3}):
            server.plan("post", answering(dense.manifest))
            assert Service(server.url).manifest(other)["digest"] == dense.digest


def job(dense, state: str, **more) -> dict:
    return {"spec_digest": dense.spec_digest, "state": state, "progress": None, "error": None, **more}


class TestJobs:
    def service(self, server, fault=None) -> Service:
        return Service(server.url, timeout=patience(fault), pause=0.01)

    def test_a_job_is_looked_at_until_it_ends(self, server, dense):
        server.plan("post", answering(job(dense, "queued"), 202))
        told = [{"iteration": 1}, {"iteration": 1}, None, {"iteration": 2}]
        server.plan("status", *(answering(job(dense, "running", progress=one)) for one in told))
        events: list[Event] = []
        assert self.service(server).manifest(SPEC, progress=events.append)["digest"] == dense.digest
        assert events == [Event("progress", {"iteration": 1}), Event("progress", {"iteration": 2})]

    def test_service_that_is_away_for_a_while(self, server, dense):
        server.plan("post", *[answering(job(dense, "running"), 202)] * 2)
        server.plan("status", *[vanish] * 4, *(answering({"title": "Unavailable"}, status) for status in (429, 503)))
        assert Service(server.url, pause=0.01, patience=600.0).manifest(SPEC)["digest"] == dense.digest
        server.plan("status", vanish)
        with pytest.raises(ServiceUnreachable):
            Service(server.url, patience=0.0).manifest(SPEC)

    def test_the_time_that_a_full_service_names(self, server, dense):
        def busy(seconds):
            return lambda handler, *_: honest(handler, 429, {"Retry-After": seconds}, b"{}")

        slept: list[float] = []
        service = Service(server.url, patience=60.0, sleep=slept.append)
        server.plan("status", busy("7"), busy("soon"))
        assert service.wait(dense.digest)["digest"] == dense.digest and slept[0] == 7.0 and slept[1] < 1.0
        server.plan("status", busy("86400"))
        with pytest.raises(ServiceError, match="429"):
            service.wait(dense.digest)

    def test_failed_and_cancelled(self, server, dense):
        error = {"type": "limit-exceeded", "detail": "2 GiB were not enough"}
        server.plan("post", *[answering(job(dense, "running"), 202)] * 2)
        server.plan("status", answering(job(dense, "failed", error=error)), answering(job(dense, "cancelled")))
        with pytest.raises(SolveFailed, match="2 GiB were not enough"):
            self.service(server).manifest(SPEC)
        with pytest.raises(Cancelled):
            self.service(server).manifest(SPEC)

    @pytest.mark.parametrize("document", [{}, {"state": "running"}, {"spec_digest": "x", "state": "running"}])
    def test_neither_job_nor_manifest(self, server, dense, document):
        server.plan("post", answering(document, 202))
        server.plan("status", answering(document))
        with pytest.raises(ServiceError):
            self.service(server).manifest(SPEC)

    @pytest.mark.parametrize("data", [b"data: {\n\n", b"data: [1]\n\n", b"data: NaN\n\n"])
    def test_events_that_are_no_json_objects(self, server, data):
        server.plan("post", lambda handler, *_: honest(handler, 200, {}, data))
        with pytest.raises(ServiceError, match="did not answer with JSON|JSON that is not an object"):
            self.service(server).compare({})

    def test_a_comparison_tells_how_far_it_is_and_may_break_off(self, server):
        first = b': ping\n\nevent: progress\r\ndata: {"done": 1}\r\n\r\n'
        server.plan(
            "post", lambda handler, *_: honest(handler, 200, {}, first + b'event: done\ndata: {"rows": []}\n\n')
        )
        events: list[Event] = []
        assert self.service(server).compare({}, progress=events.append) == {"rows": []}
        assert events[0] == Event("progress", {"done": 1})
        server.plan("post", lambda handler, *_: honest(handler, 200, {}, first + b'event: done\ndata: {"ro'))
        with pytest.raises(ServiceUnreachable, match="ended too early"):
            self.service(server).compare({})


class TestService:
    def test_problem_documents(self, server, dense):
        refusal = {"title": "Refused", "detail": "n is too large", "pointer": "/workload/n"}
        server.plan("post", answering(refusal, 422))
        with pytest.raises(ServiceError, match="Refused: n is too large") as caught:
            Service(server.url).post(SPEC)
        assert caught.value.status == 422 and caught.value.problem["pointer"] == "/workload/n"
        assert not isinstance(caught.value, ServiceUnreachable)
        with pytest.raises(ServiceError) as caught:
            Service(server.url).status("0" * 64)
        assert caught.value.status == 404

    def test_nothing_listens(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with pytest.raises(ServiceUnreachable, match="factorize serve"):
            Service(f"http://127.0.0.1:{port}").post(SPEC)

    def test_service_that_never_answers(self, server):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            with pytest.raises(ServiceUnreachable, match="sent nothing"):
                Service(url, timeout=0.1).post(SPEC)

    @pytest.mark.parametrize("answer", [b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n[1]"])
    def test_service_of_another_kind(self, answer):
        with socket.create_server(("127.0.0.1", 0)) as other:

            def speak() -> None:
                connection, _ = other.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

            speaker = threading.Thread(target=speak)
            speaker.start()
            with pytest.raises(ServiceError):
                Service(f"http://127.0.0.1:{other.getsockname()[1]}", timeout=600).status("0" * 64)
            speaker.join()

    @pytest.mark.parametrize(
        "url", ["", "127.0.0.1:8000", "ftp://host", "http://", "http://h:99999", "http://h/?a=1", 5]
    )
    def test_what_is_no_address(self, url):
        with pytest.raises(InvalidParameter, match="address"):
            Service(url)

    def test_mounted_under_a_path(self, server, dense):
        with pytest.raises(ServiceError):
            Service(server.url + "/mounted/").status(dense.digest)
        assert server.seen[-1][1].startswith("/mounted/v1/")

    @pytest.mark.parametrize("digest", ["../../etc", "A" * 64, "", "0" * 63, "0" * 64 + "\r\nX: y"])
    def test_what_is_no_digest_is_never_sent(self, server, digest):
        with pytest.raises(InvalidParameter):
            Service(server.url).status(digest)
        assert not server.seen

    def test_spec_that_is_none(self, server):
        server.plan("post", relabelled())
        with pytest.raises((InvalidSpec, ServiceError)):
            Service(server.url, timeout=600).manifest("{}")


def streamed(server, factorization, matrix="C_inv", *, timeout=30.0, **options):
    """Rows as a job without a file has them."""
    return connect(factorization.digest, url=server.url, timeout=timeout).rows(matrix, **options)


class TestRows:
    def test_every_matrix_in_blocks_of_any_size(self, server, dense):
        for matrix in MATRIX_NAMES:
            whole = dense.rows(matrix, 0, N)
            for rows in (1, 7, N, 10 * N):
                stream = streamed(server, dense, matrix, block_bytes=8 * N * rows)
                got = np.array(list(stream))
                assert np.allclose(got, whole, rtol=0, atol=1e-14)  # rounding depends on the block
                assert np.array_equal(np.array(list(stream.iterate(50))), got[50:])
        assert stream.shape == (N, N)

    def test_a_range_of_rows_comes_in_checked_blocks(self, server, dense, monkeypatch):
        monkeypatch.setattr("factorize.client.received_rows.BLOCK_BYTES", 8 * N * 10)
        found = connect(dense.digest, url=server.url).rows("C_inv", 5, 32)
        assert np.allclose(found, dense.rows("C_inv", 5, 32), rtol=0, atol=1e-14)
        assert [path.partition("=")[2] for path in server.paths("rows=")] == ["5:15", "15:25", "25:32"]

    @pytest.mark.parametrize("fault", [cut(0), cut(100), reset(800), stall(900), vanish, close_delimited(999)])
    @pytest.mark.usefixtures("much_patience")
    def test_one_fault_is_survived(self, server, dense, fault):
        stream = streamed(server, dense, block_bytes=8 * N * 40, timeout=patience(fault))
        server.plan("rows", fault)
        assert np.allclose(list(stream), dense.rows("C_inv", 0, N), rtol=0, atol=1e-14)

    @pytest.mark.parametrize(
        "fault",
        [
            relabelled(X_Factorize_Shape="96,95"),
            relabelled(X_Factorize_Shape="1,96"),
            relabelled(X_Factorize_Dtype="float32"),
            relabelled(X_Factorize_Digest="0" * 64),
            shortened(8),
            shortened(-8),
            close_delimited(999),
            close_delimited(10**9),
            answering({"title": "Outside"}, 422),
        ],
    )
    def test_other_shape_type_or_length(self, server, dense, fault):
        stream = streamed(server, dense, timeout=patience(fault))
        if fault.__qualname__.startswith("close_delimited"):
            server.plan("rows", *[lambda h, s, k, b: fault(h, s, k, b + bytes(8))] * 12)
        else:
            server.plan("rows", *[fault] * 12)
        with pytest.raises(ServiceError):
            list(stream)

    @pytest.mark.parametrize("at", [0, -1, 4000])
    def test_a_flipped_bit_is_noticed_and_the_block_asked_for_again(self, server, dense, at):
        stream = streamed(server, dense, block_bytes=8 * N * 10)
        server.plan("rows", flip(at), flip(at))
        whole = np.array(list(stream))
        assert np.allclose(whole, dense.rows("C_inv", 0, N), rtol=0, atol=1e-14)
        server.plan("rows", *[flip(at)] * 60)
        with pytest.raises(ServiceError, match="came with the X-Factorize-Crc32"):
            list(stream)

    @pytest.mark.parametrize("stated", ["", "-0x1234"])
    def test_rows_without_a_checksum(self, server, dense, stated):
        server.plan("rows", *[relabelled(X_Factorize_Crc32=stated)] * 12)
        with pytest.raises(ServiceError, match=f"came with the X-Factorize-Crc32 '{stated}'"):
            list(streamed(server, dense))

    def test_bad_parameters(self, server, dense):
        with pytest.raises(InvalidParameter, match="C, C_inv, B"):
            streamed(server, dense, "A")
        with pytest.raises(InvalidParameter, match="block_bytes"):
            streamed(server, dense, block_bytes=0)
        with pytest.raises(InvalidParameter, match="outside"):
            list(streamed(server, dense).iterate(N + 1))
        with pytest.raises(InvalidParameter, match=f"rows 0:{N + 1} are outside"):
            connect(dense.digest, url=server.url).rows("C", 0, N + 1)


class TestLiveService:
    """The same client against the service of this project."""

    SPEC = {"workload": {"kind": "momentum", "n": 40, "momentum": 0.9}}

    def test_solve_follow_fetch_resume(self, live_service, tmp_path):
        events: list[Event] = []
        path = fetch(self.SPEC, url=live_service.url, to=tmp_path / "f", progress=events.append)
        assert "download" in [event.kind for event in events]
        opened = load(path)
        assert opened.verify().converged
        data = path.read_bytes()
        (tmp_path / "g.part").write_bytes(data[:7000])
        events.clear()
        fetch(opened.digest, url=live_service.url, to=tmp_path / "g", progress=events.append)
        assert (tmp_path / "g").read_bytes() == data
        assert [event.kind for event in events] == ["download", "origin"]

    def test_canonicalize_and_cancel(self, live_service):
        service = Service(live_service.url)
        answer = service.canonicalize(self.SPEC)
        assert answer["spec"]["participation"] == {"kind": "single"} and len(answer["spec_digest"]) == 64
        with pytest.raises(ServiceError) as caught:
            service.cancel("0" * 64)
        assert caught.value.status == 404


def test_documentation_names_what_there_is():
    page = (Path(__file__).parents[3] / "docs" / "training.md").read_text()
    assert all(f"client.{name}" in page or f"import {name}" in page for name in ("connect", "fetch"))
    for error in (ServiceUnreachable, ServiceError, CorruptObject, SolveFailed, Cancelled, StoreUnavailable):
        assert f"`{error.__name__}`" in page
