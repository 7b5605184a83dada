"""Files in an S3 bucket, created by conditional writes.

S3 has no rename that fails if the target exists, but a PUT with `If-None-Match: *` creates an
object only if its key is unused. The request goes through S3A's own client, so the session's
endpoint, credentials, encryption and storage class apply. This works with every S3A of Hadoop 3.4;
S3A's own option for conditional writes begins with Hadoop 3.4.2, and PySpark 4.0 ships 3.4.1.

A store that ignores the condition would let two jobs commit the same number. So the first write to
a bucket probes it: of two writes to one new key, the store must refuse the second one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.files import HadoopFiles, file_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WRITER = "ledger-writer"
"""User metadata of an object: identifies the call that created it."""
_TAKEN, _NOT_IMPLEMENTED = 412, 501
_REPEATED = frozenset({0, 409, 429, 500, 502, 503, 504})
"""Answers after which a request is sent again. 0: none came. 409: the key is being written."""
_TRIES = 10
_PAUSE_S_MAX = 5.0


class S3Files(HadoopFiles):
    """Files that the Spark driver reaches through S3A."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark)
        self._jvm: Any = spark.sparkContext._jvm  # pyright: ignore[reportPrivateUsage]
        # The buckets whose conditional writes this process has probed. Only grows.
        self._probed: set[str] = set()

    def put_if_absent(self, path: str, data: bytes) -> bool:
        with file_errors(path):
            target = self._path(path)
            system = target.getFileSystem(self._configuration)
            self._probe(system, target, path)
            return self._put(system, target, data)

    def move(self, source: str, target: str) -> None:
        """Copy within the store, then delete `source`.

        Objects appear whole, and `target` names a file of one run. So an existing target is the
        finished copy of an earlier or concurrent call.
        """
        with file_errors(source):
            old, new = self._path(source), self._path(target)
            system = old.getFileSystem(self._configuration)
            if not system.exists(new):
                self._copy(system, old, new)
            system.delete(old, False)

    def modified_ms(self, path: str) -> int | None:
        """Return the time of the object's last write, or None if there is no such object.

        Directories have no time on S3. For them, S3A reports the clock of the reader.
        """
        status = self._status(path)
        if status is None or status.isDirectory():
            return None
        return int(status.getModificationTime())

    def _copy(self, system: Any, old: Any, new: Any) -> None:
        if not system.exists(old) and not system.exists(new):
            raise FileNotFoundError("it does not exist")
        system.mkdirs(new.getParent())
        error = _failure(lambda: system.rename(old, new))
        # Another call may have moved the file meanwhile.
        if not system.exists(new):
            raise error or OSError(f"it could not be renamed to {new}")

    def _probe(self, system: Any, target: Any, path: str) -> None:
        """Raise JobError unless the store refuses to replace an object conditionally."""
        from py4j.protocol import Py4JJavaError

        bucket = system.getUri().toString()
        if bucket in self._probed:
            return
        probe = self._hadoop.fs.Path(target.getParent(), f".probe.{uuid4().hex}")
        try:
            atomic = self._put(system, probe, b"1") and not self._put(system, probe, b"2")
        except Py4JJavaError as error:
            if _http_status(error) != _NOT_IMPLEMENTED:
                raise
            atomic = False
        finally:
            system.delete(probe, False)
        if not atomic:
            raise JobError(
                f"{path}: the store behind {bucket} has no conditional writes (If-None-Match), so"
                " two jobs could both commit; use a store that has them, or an Iceberg table",
                "UNSUPPORTED_FILE_SYSTEM",
            )
        self._probed.add(bucket)

    def _put(self, system: Any, target: Any, data: bytes) -> bool:
        """Create the object unless it exists. Returns True if this call has created it."""
        client = system.getS3AInternals().getAmazonS3Client("conditional write")
        writer = uuid4().hex
        request = self._request(system, target, len(data), writer)
        body = self._jvm.software.amazon.awssdk.core.sync.RequestBody.fromBytes(bytearray(data))
        for attempt in range(1, _TRIES + 1):
            error = _failure(lambda: client.putObject(request, body))
            if error is None:
                return True
            status = _http_status(error)
            if status == _TAKEN:
                # An earlier request of this call may have created the object unanswered.
                return self._writer(system, client, target) == writer
            if status not in _REPEATED or attempt == _TRIES:
                raise error
            time.sleep(min(0.1 * 2**attempt, _PAUSE_S_MAX))
        raise AssertionError("the last attempt returns or raises")

    def _request(self, system: Any, target: Any, length: int, writer: str) -> Any:
        key = system.pathToKey(target)
        builder = system.getRequestFactory().newPutObjectRequestBuilder(key, None, length, False)
        settings = builder.overrideConfiguration()
        if settings is None:
            core = self._jvm.software.amazon.awssdk.awscore
            changed = core.AwsRequestOverrideConfiguration.builder()
        else:
            changed = settings.toBuilder()
        metadata = self._jvm.java.util.HashMap()
        metadata.put(_WRITER, writer)
        builder.metadata(metadata)
        return builder.overrideConfiguration(
            changed.putHeader("If-None-Match", "*").build()
        ).build()

    def _writer(self, system: Any, client: Any, target: Any) -> str | None:
        """Return the call that has created the object, if the store keeps metadata."""
        key = system.pathToKey(target)
        request = system.getRequestFactory().newHeadObjectRequestBuilder(key).build()
        return client.headObject(request).metadata().get(_WRITER)


def _failure(call: Callable[[], object]) -> Exception | None:
    """Return the Java exception that the call raises, or None."""
    from py4j.protocol import Py4JJavaError

    try:
        call()
    except Py4JJavaError as error:
        return error
    return None


def _http_status(error: Any) -> int:
    """Return the HTTP status of a failed request, or 0 if the store has not answered."""
    cause = error.java_exception
    while cause is not None:
        if "statusCode" in dir(cause):
            return int(cause.statusCode())
        cause = cause.getCause()
    return 0
