"""Small files that record the progress of a job. A file is created whole, durably and only once.

The port has two implementations. `LocalFiles` serves disks and NFS. This class syncs a temporary
file and links it to its final name, because a link never replaces a file. `HadoopFiles` serves file
systems that Spark reaches through Hadoop and that rename atomically without overwriting. Examples
are HDFS, and ABFS with a hierarchical namespace. `S3Files`, in its own module, serves S3 by
conditional writes. Stores that have neither are refused, because two jobs could both believe that
their commit succeeded.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from gateway.pipelines.shared.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_T = TypeVar("_T")

_ATOMIC = frozenset({"hdfs", "viewfs", "webhdfs", "ofs", "abfs", "abfss"})
"""Schemes whose FileContext.rename is atomic and fails if the target exists."""
_S3 = "s3a"
_HIDDEN = "."
_FETCHED_AT_ONCE = 1 << 20


class Files(Protocol):
    """The port to files.

    Paths are absolute, with or without a scheme. Every method may raise JobError.
    """

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create the file, whole and durable, unless it exists. Returns True if it was created.

        Creates missing directories. A crash never leaves a part of the file. Some file systems
        repeat a call whose answer was lost, and then report that the file exists, or fail. So the
        outcome of False and of an error is unknown until the caller has read the file. Only an
        error with the code NOT_SYNCED means that the file may not outlive a crash.
        """
        ...

    def read(self, path: str) -> bytes | None:
        """Return all bytes, or None if the file does not exist."""
        ...

    def fetch(self, path: str) -> bool:
        """Read all bytes and discard them. Returns False if the file does not exist.

        Success shows that the store delivers the file, whatever its contents are.
        """
        ...

    def names(self, directory: str) -> list[str]:
        """List the files and directories in `directory`, sorted.

        Hidden and unfinished files are omitted. Returns an empty list if the directory does not
        exist.
        """
        ...

    def move(self, source: str, target: str) -> None:
        """Rename `source` to `target` and create missing directories.

        A repeated call succeeds, also while another process makes the same call. Both names belong
        to the same file, so an existing target is never removed. Raises JobError if neither
        `source` nor `target` exists.
        """
        ...

    def remove(self, path: str) -> None:
        """Remove the file, or the directory with all its contents, if it exists."""
        ...

    def size(self, path: str) -> int | None:
        """Return the number of bytes of a file, or None if it does not exist."""
        ...

    def modified_ms(self, path: str) -> int | None:
        """Return the time of the file's last write, or None if the file does not exist.

        The time is that of the file system's clock.
        """
        ...

    def now_ms(self, directory: str) -> int:
        """Return the time of the file system's clock, by a file written in `directory`."""
        ...


def open_files(spark: SparkSession | None, path: str) -> Files:
    """Choose the implementation for this path: the local disk for `/...` and `file:`, else Hadoop.

    As in Spark, a path without a scheme belongs to `fs.defaultFS`. Raises JobError if the file
    system cannot create a file without replacing an existing one.
    """
    scheme = urlsplit(path).scheme
    if not scheme and spark is not None:
        hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()  # pyright: ignore
        scheme = urlsplit(hadoop.get("fs.defaultFS", "file:///")).scheme
    if scheme in ("", "file"):
        return LocalFiles()
    if scheme != _S3 and scheme not in _ATOMIC:
        raise JobError(
            f"{path}: {scheme}: cannot create a file only if it is absent, so two jobs could both "
            "commit; use a disk, NFS, HDFS or S3 (s3a://), or an Iceberg table",
            "UNSUPPORTED_FILE_SYSTEM",
        )
    assert spark is not None, "Hadoop needs a Spark session"
    if scheme == _S3:
        from gateway.pipelines.shared.s3_files import S3Files

        return S3Files(spark)
    return HadoopFiles(spark)


def join_path(directory: str, *names: str) -> str:
    """Return the path of `names` below `directory`, for any scheme."""
    return "/".join((directory.rstrip("/"), *names))


def local_path(path: str) -> Path:
    """Return the local path of `/a`, `file:/a` or `file:///a`."""
    # Like Hadoop's Path, decode no percent escapes.
    return Path(re.sub("^file:/*", "/", path))


class LocalFiles:
    """Files on this machine or on NFS."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        target = local_path(path)
        with file_errors(path):
            make_directories(target.parent)
            temporary = target.with_name(f"{_HIDDEN}{target.name}.{uuid4().hex}")
            try:
                _write_synced(temporary, data)
                won = _link(temporary, target)
            finally:
                with suppress(OSError):  # a hidden file that stays does no harm
                    temporary.unlink()
            try:
                sync_path(target.parent)
            except OSError as error:
                raise JobError(f"{path}: written, but not synced: {error}", "NOT_SYNCED") from error
        return won

    def read(self, path: str) -> bytes | None:
        with file_errors(path):
            try:
                return local_path(path).read_bytes()
            except FileNotFoundError:
                return None

    def fetch(self, path: str) -> bool:
        with file_errors(path), suppress(FileNotFoundError), local_path(path).open("rb") as file:
            while file.read(_FETCHED_AT_ONCE):
                pass
            return True
        return False

    def names(self, directory: str) -> list[str]:
        with file_errors(directory):
            try:
                names = [each.name for each in local_path(directory).iterdir()]
            except FileNotFoundError:
                return []
        return sorted(name for name in names if name[0] != _HIDDEN)

    def move(self, source: str, target: str) -> None:
        old, new = local_path(source), local_path(target)
        with file_errors(source):
            make_directories(new.parent)
            try:
                old.rename(new)
            except FileNotFoundError:
                if not new.exists():
                    raise
            sync_path(new.parent)

    def remove(self, path: str) -> None:
        found = local_path(path)
        with file_errors(path):
            try:
                shutil.rmtree(found) if found.is_dir() else found.unlink()
            except FileNotFoundError:
                pass

    def size(self, path: str) -> int | None:
        with file_errors(path):
            try:
                return local_path(path).stat().st_size
            except FileNotFoundError:
                return None

    def modified_ms(self, path: str) -> int | None:
        with file_errors(path):
            try:
                return local_path(path).stat().st_mtime_ns // 1_000_000
            except FileNotFoundError:
                return None

    def now_ms(self, directory: str) -> int:
        probe = local_path(directory) / f"{_HIDDEN}clock.{uuid4().hex}"
        with file_errors(directory):
            make_directories(probe.parent)
            try:
                probe.write_bytes(b"")
                return probe.stat().st_mtime_ns // 1_000_000
            finally:
                probe.unlink(missing_ok=True)


class HadoopFiles:
    """Files that the Spark driver reaches through Hadoop."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark.sparkContext._jvm  # pyright: ignore
        self._hadoop = jvm.org.apache.hadoop
        self._no_options = spark.sparkContext._gateway.new_array(  # pyright: ignore
            self._hadoop.fs.Options.Rename, 0
        )
        self._configuration: Any = spark.sparkContext._jsc.hadoopConfiguration()  # pyright: ignore
        self._nowhere: Any = jvm.java.io.OutputStream.nullOutputStream()

    def put_if_absent(self, path: str, data: bytes) -> bool:
        with file_errors(path):
            target = self._path(path)
            system = target.getFileSystem(self._configuration)
            temporary = self._hadoop.fs.Path(
                target.getParent(), f"{_HIDDEN}{target.getName()}.{uuid4().hex}"
            )
            try:
                out = system.create(temporary, False)
                try:
                    out.write(bytearray(data))
                    out.hsync()
                finally:
                    out.close()
                return self._rename(temporary, target)
            finally:
                system.delete(temporary, False)

    def read(self, path: str) -> bytes | None:
        return self._consume(path, lambda stream: bytes(stream.readAllBytes()))

    def fetch(self, path: str) -> bool:
        return self._consume(path, lambda stream: stream.transferTo(self._nowhere)) is not None

    def _consume(self, path: str, use: Callable[[Any], _T]) -> _T | None:
        """Return the result of `use` for the file's stream, or None if the file does not exist."""
        with file_errors(path):
            found = self._path(path)
            system = found.getFileSystem(self._configuration)
            if not system.exists(found):
                return None
            stream = system.open(found)
            try:
                return use(stream)
            finally:
                stream.close()

    def names(self, directory: str) -> list[str]:
        with file_errors(directory):
            found = self._path(directory)
            system = found.getFileSystem(self._configuration)
            if not system.exists(found):
                return []
            names = [status.getPath().getName() for status in system.listStatus(found)]
        return sorted(name for name in names if name[0] != _HIDDEN)

    def move(self, source: str, target: str) -> None:
        with file_errors(source):
            old, new = self._path(source), self._path(target)
            system = old.getFileSystem(self._configuration)
            error = self._try_move(system, old, new)
            if error is None:
                return
            # Another process may have moved the file, or the answer to this rename was lost.
            if not system.exists(new):
                raise error
            if system.exists(old):
                if not isinstance(error, FileExistsError) or not _same_size(system, old, new):
                    raise error
                system.delete(old, False)

    def _try_move(self, system: Any, old: Any, new: Any) -> Exception | None:
        """Rename and create missing directories. Returns the error if that was not possible."""
        from py4j.protocol import Py4JJavaError

        if not system.exists(old):
            return FileNotFoundError("it does not exist")
        system.mkdirs(new.getParent())
        try:
            if self._rename(old, new):
                return None
        except Py4JJavaError as error:
            return error
        return FileExistsError(f"{new} exists with another size")

    def remove(self, path: str) -> None:
        with file_errors(path):
            found = self._path(path)
            found.getFileSystem(self._configuration).delete(found, True)

    def size(self, path: str) -> int | None:
        status = self._status(path)
        return None if status is None else int(status.getLen())

    def modified_ms(self, path: str) -> int | None:
        status = self._status(path)
        return None if status is None else int(status.getModificationTime())

    def now_ms(self, directory: str) -> int:
        probe = self._path(join_path(directory, f"{_HIDDEN}clock.{uuid4().hex}"))
        with file_errors(directory):
            system = probe.getFileSystem(self._configuration)
            try:
                system.create(probe, False).close()
                return int(system.getFileStatus(probe).getModificationTime())
            finally:
                system.delete(probe, False)

    def _status(self, path: str) -> Any:
        with file_errors(path):
            found = self._path(path)
            system = found.getFileSystem(self._configuration)
            return system.getFileStatus(found) if system.exists(found) else None

    def _path(self, path: str) -> Any:
        return self._hadoop.fs.Path(path)

    def _rename(self, old: Any, new: Any) -> bool:
        """Rename without overwriting. Returns False if the new name is taken."""
        from py4j.protocol import Py4JJavaError

        context = self._hadoop.fs.FileContext.getFileContext(old.toUri(), self._configuration)
        try:
            context.rename(old, new, self._no_options)
        except Py4JJavaError as error:
            if "FileAlreadyExistsException" in str(error.java_exception):
                return False
            raise
        return True


def _same_size(system: Any, one: Any, other: Any) -> bool:
    return system.getFileStatus(one).getLen() == system.getFileStatus(other).getLen()


@contextmanager
def file_errors(path: str) -> Generator[None]:
    """Convert errors of the file system to a JobError of one line that names the path."""
    try:
        yield
    except OSError as error:
        raise JobError(f"{path}: {error.strerror or error}", "FILE_SYSTEM") from error
    except Exception as error:
        java: Any = getattr(error, "java_exception", None)
        if java is None:
            raise
        raise JobError(f"{path}: {java.toString()}", "FILE_SYSTEM") from error


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _link(temporary: Path, target: Path) -> bool:
    """Link the file to its final name. Returns False if the name is taken."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        # Over NFS the reply to a successful link may be lost. The retry then finds the name taken.
        return temporary.stat().st_nlink == 2
    return True


def make_directories(directory: Path) -> None:
    """Create the directory and its parents, durably."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        sync_path(each.parent)


def sync_path(path: Path) -> None:
    """Sync a file or directory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
