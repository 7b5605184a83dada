"""Goal: of several jobs, exactly one puts a file into S3, and a store that cannot is refused.

Method: a real S3 server, asked directly first: it must refuse a conditional write of a key that is
in use. Then the files of the jobs, beside readers of the server's own directory. A forwarder in
front of another server loses replies, or takes the condition out of each request.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from gateway.pipelines.archives.iceberg import IcebergArchive
from gateway.pipelines.archives.parquet import ParquetArchive
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.files import join_path, open_files
from gateway.pipelines.shared.partitions import OffsetRange
from gateway.pipelines.shared.s3_files import S3Files
from tests.peers.s3 import S3Server
from tests.peers.spark import reach
from tests.pipelines.archive_contract import ArchiveContract, commit, frame, read, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.proof]
CONDITION = {"If-None-Match": "*"}


@pytest.fixture
def files(spark: SparkSession, s3: S3Server) -> S3Files:
    return S3Files(spark)


@pytest.fixture
def base(s3: S3Server) -> str:
    return s3.path(f"files of {uuid4().hex}/k=1%2F")


def test_the_server_itself_refuses_a_conditional_write_of_a_used_key(s3: S3Server) -> None:
    key = f"/{s3.bucket}/direct-{uuid4().hex}"
    assert s3.request("PUT", key, b"first", CONDITION)[0] == 200
    assert s3.request("PUT", key, b"second", CONDITION)[0] == 412
    assert s3.request("GET", key) == (200, b"first")
    with ThreadPoolExecutor(16) as pool:
        raced = [
            pool.submit(s3.request, "PUT", f"{key}-raced", b"%d" % number, CONDITION)
            for number in range(32)
        ]
    assert sorted(each.result()[0] for each in raced) == [200, *31 * [412]]


def test_the_second_of_a_name_is_refused_and_the_first_stays(files: S3Files, base: str) -> None:
    path = join_path(base, "deep", "1.json")
    assert files.put_if_absent(path, b"first\x00\xff")
    assert not files.put_if_absent(path, b"second")
    assert not files.put_if_absent(path, b"first\x00\xff")
    assert files.read(path) == b"first\x00\xff"
    assert files.names(join_path(base, "deep")) == ["1.json"]


def test_a_missing_file_reads_as_none(files: S3Files, base: str) -> None:
    assert files.read(join_path(base, "no")) is None
    assert files.names(join_path(base, "no")) == []
    assert files.modified_ms(join_path(base, "no")) is None
    files.remove(join_path(base, "no"))


def test_sizes_and_times_are_those_of_the_store(files: S3Files, base: str, s3: S3Server) -> None:
    path = join_path(base, "deep", "1.json")
    assert files.put_if_absent(path, b"four")
    assert files.size(path) == 4 and files.size(join_path(base, "no")) is None
    now_ms, written_ms = files.now_ms(base), files.modified_ms(path)
    assert written_ms is not None and 0 <= now_ms - written_ms < 60_000
    assert files.names(base) == ["deep"]
    (stored,) = (each for each in s3.data.rglob("1.json") if base.split("/")[-2] in str(each))
    os.utime(stored, (1_700_000_000, 1_700_000_000))
    assert files.modified_ms(path) == 1_700_000_000_000
    assert files.modified_ms(join_path(base, "deep")) is None


def test_a_move_may_be_made_again_and_by_two_at_once(files: S3Files, base: str) -> None:
    source, target = join_path(base, "_s", "x"), join_path(base, "t", "x")
    files.put_if_absent(source, b"data")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: files.move(source, target), range(8)))
    files.move(source, target)
    assert files.read(target) == b"data" and files.read(source) is None
    with pytest.raises(JobError):
        files.move(source, join_path(base, "elsewhere"))
    # A finisher may die between the copy and the removal.
    files.put_if_absent(source, b"data")
    files.move(source, target)
    assert files.read(target) == b"data" and files.read(source) is None


def test_a_directory_is_removed_with_its_contents(files: S3Files, base: str) -> None:
    files.put_if_absent(join_path(base, "d", "e", "f"), b"")
    files.remove(join_path(base, "d"))
    assert files.read(join_path(base, "d", "e", "f")) is None


def test_of_many_concurrent_writers_one_wins_and_its_data_is_kept(
    files: S3Files, base: str
) -> None:
    path = join_path(base, "_commits", "7.json")
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda each: files.put_if_absent(path, b"%d" % each), range(24)))
    assert won.count(True) == 1
    assert files.read(path) == b"%d" % won.index(True)
    assert files.names(join_path(base, "_commits")) == ["7.json"]


class TestContractOnS3(ArchiveContract):
    """The contract of all archives."""

    @pytest.fixture
    def name(self, s3: S3Server) -> str:
        return s3.path(f"an archive {uuid4().hex}")

    def opened(self, spark: SparkSession, name: str) -> ParquetArchive:
        return ParquetArchive(spark, name)


# --- a store behind a forwarder -------------------------------------------------------------------

Answer = tuple[int, list[tuple[str, str]], bytes]
Change = Callable[[str, dict[str, str]], bool]
"""Receives the method and path of a request, and its headers, which it may change.

If it returns False, the reply is lost.
"""


@contextmanager
def forwarded(port: int, change: Change) -> Iterator[str]:
    """Pass requests on to the server at `port`; gives the endpoint."""

    class Forwarder(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = dict(self.headers.items())
            passes = change(f"{self.command} {self.path}", headers)
            status, fields, data = _ask(port, self.command, self.path, body, headers)
            if not passes:
                self.close_connection = True
                return
            self.send_response_only(status)
            for key, value in fields:
                if key.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(key, value)
            length = dict(fields).get("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = forward

    server = ThreadingHTTPServer(("127.0.0.1", 0), Forwarder)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _ask(port: int, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for key, value in headers.items():
            connection.putheader(key, value)
        connection.endheaders(body or None)
        answer = connection.getresponse()
        return answer.status, answer.getheaders(), answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def unsigned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(
        tmp_path_factory.mktemp("unsigned") / "data", bucket="plain", signed=False
    ) as server:
        for bucket in ("careless", "lossy", "forgetful", "away-files", "away-tables"):
            server.data.joinpath(bucket).mkdir()
        yield server


def settings(server: S3Server, bucket: str, endpoint: str) -> dict[str, str]:
    found = server.hadoop(endpoint)
    return {key.replace(".plain.", f".{bucket}."): value for key, value in found.items()}


def test_a_store_that_ignores_the_condition_is_refused_by_name(
    spark: SparkSession, unsigned: S3Server
) -> None:
    def without_condition(_: str, headers: dict[str, str]) -> bool:
        for key in [each for each in headers if each.lower() == "if-none-match"]:
            del headers[key]
        return True

    with forwarded(unsigned.port, without_condition) as endpoint:
        reach(spark, settings(unsigned, "careless", endpoint))
        files = open_files(spark, "s3a://careless/x")
        for _ in range(2):
            with pytest.raises(JobError, match=r"s3a://careless has no conditional writes"):
                files.put_if_absent("s3a://careless/x/_commits/1.json", b"1")
        assert files.names("s3a://careless/x/_commits") == []


def test_a_write_whose_reply_is_lost_is_known_to_be_ours(
    spark: SparkSession, unsigned: S3Server
) -> None:
    lost: list[str] = []
    losing = [False]

    def lose_one(request: str, _: dict[str, str]) -> bool:
        if request.startswith("PUT ") and losing[0]:
            losing[0] = False
            lost.append(request)
            return False
        return True

    with forwarded(unsigned.port, lose_one) as endpoint:
        reach(spark, settings(unsigned, "lossy", endpoint))
        files = open_files(spark, "s3a://lossy/x")
        assert files.put_if_absent("s3a://lossy/x/1.json", b"first")
        losing[0] = True
        assert files.put_if_absent("s3a://lossy/x/2.json", b"mine")
        assert lost == ["PUT /lossy/x/2.json"]
        assert not files.put_if_absent("s3a://lossy/x/2.json", b"mine")
        assert files.read("s3a://lossy/x/2.json") == b"mine"


def test_a_commit_whose_reply_is_lost_stands_although_the_store_keeps_no_metadata(
    spark: SparkSession, unsigned: S3Server
) -> None:
    lost: list[str] = []

    def forget(request: str, headers: dict[str, str]) -> bool:
        for key in [each for each in headers if each.lower().startswith("x-amz-meta-")]:
            del headers[key]
        if lost or "/_commits/0" not in request or not request.startswith("PUT "):
            return True
        lost.append(request)
        return False

    with forwarded(unsigned.port, forget) as endpoint:
        reach(spark, settings(unsigned, "forgetful", endpoint))
        archive = ParquetArchive(spark, "s3a://forgetful/x")
        wanted = OffsetRange("a", 0, 0, 4)
        assert archive.append(frame(spark, rows(wanted)), commit(wanted), archive.state())
        assert len(lost) == 1
        again = ParquetArchive(spark, "s3a://forgetful/x")
        assert read(again) == rows(wanted)
        assert again.verify().problems == ()


HASTY = {
    "attempts.maximum": "1",
    "retry.limit": "1",
    "retry.interval": "10ms",
    "retry.throttle.limit": "1",
    "retry.throttle.interval": "10ms",
}
"""Settings of S3A that give up soon."""


@pytest.mark.parametrize(
    ("kind", "bucket"), [(ParquetArchive, "away-files"), (IcebergArchive, "away-tables")]
)
def test_a_server_that_delivers_no_data_damages_no_archive(
    spark: SparkSession,
    unsigned: S3Server,
    kind: type[ParquetArchive] | type[IcebergArchive],
    bucket: str,
) -> None:
    """The server answers all requests but the GETs of data files, which it leaves unanswered."""
    away = [False]

    def deliver(request: str, _: dict[str, str]) -> bool:
        return not (away[0] and request.startswith("GET ") and request.endswith(".parquet"))

    with forwarded(unsigned.port, deliver) as endpoint:
        reach(spark, settings(unsigned, bucket, endpoint))
        reach(spark, {f"fs.s3a.bucket.{bucket}.{key}": value for key, value in HASTY.items()})
        spark.conf.set("spark.sql.catalog.away", "org.apache.iceberg.spark.SparkCatalog")
        spark.conf.set("spark.sql.catalog.away.type", "hadoop")
        spark.conf.set("spark.sql.catalog.away.warehouse", f"s3a://{bucket}/lake")
        place = f"s3a://{bucket}/x" if kind is ParquetArchive else "away.archives.x"
        archive = kind(spark, place)
        wanted = OffsetRange("a", 0, 0, 4)
        assert archive.append(frame(spark, rows(wanted)), commit(wanted), archive.state())
        away[0] = True
        with pytest.raises(JobError, match=rf"s3a://{bucket}/.*\.parquet: .*") as caught:
            archive.verify()
        assert caught.value.code == "FILE_SYSTEM"
        away[0] = False
        assert archive.verify().problems == ()
