from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class InfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InfoReply(_message.Message):
    __slots__ = ("bookie", "frame_version", "entry_bytes_max", "writable")
    BOOKIE_FIELD_NUMBER: _ClassVar[int]
    FRAME_VERSION_FIELD_NUMBER: _ClassVar[int]
    ENTRY_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    bookie: str
    frame_version: int
    entry_bytes_max: int
    writable: bool
    def __init__(self, bookie: _Optional[str] = ..., frame_version: _Optional[int] = ..., entry_bytes_max: _Optional[int] = ..., writable: _Optional[bool] = ...) -> None: ...

class LedgerRequest(_message.Message):
    __slots__ = ("bookie", "ledger", "master_key", "lac", "start")
    BOOKIE_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    MASTER_KEY_FIELD_NUMBER: _ClassVar[int]
    LAC_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    bookie: str
    ledger: int
    master_key: bytes
    lac: int
    start: str
    def __init__(self, bookie: _Optional[str] = ..., ledger: _Optional[int] = ..., master_key: _Optional[bytes] = ..., lac: _Optional[int] = ..., start: _Optional[str] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: int
    def __init__(self, status: _Optional[int] = ...) -> None: ...

class LacReply(_message.Message):
    __slots__ = ("status", "lac")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LAC_FIELD_NUMBER: _ClassVar[int]
    status: int
    lac: int
    def __init__(self, status: _Optional[int] = ..., lac: _Optional[int] = ...) -> None: ...

class EntriesReply(_message.Message):
    __slots__ = ("status", "runs")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    status: int
    runs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, status: _Optional[int] = ..., runs: _Optional[_Iterable[int]] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ("bookie",)
    BOOKIE_FIELD_NUMBER: _ClassVar[int]
    bookie: str
    def __init__(self, bookie: _Optional[str] = ...) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("status", "disk_bytes", "free_bytes", "ledgers", "writable", "time_ms", "release", "syncs", "sync_us")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    SYNCS_FIELD_NUMBER: _ClassVar[int]
    SYNC_US_FIELD_NUMBER: _ClassVar[int]
    status: int
    disk_bytes: int
    free_bytes: int
    ledgers: int
    writable: bool
    time_ms: int
    release: str
    syncs: int
    sync_us: int
    def __init__(self, status: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., ledgers: _Optional[int] = ..., writable: _Optional[bool] = ..., time_ms: _Optional[int] = ..., release: _Optional[str] = ..., syncs: _Optional[int] = ..., sync_us: _Optional[int] = ...) -> None: ...
