from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Subscription(_message.Message):
    __slots__ = ("name", "segment_id", "last_commit_dlsn")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMIT_DLSN_FIELD_NUMBER: _ClassVar[int]
    name: str
    segment_id: int
    last_commit_dlsn: bytes
    def __init__(self, name: _Optional[str] = ..., segment_id: _Optional[int] = ..., last_commit_dlsn: _Optional[bytes] = ...) -> None: ...

class AdvanceLastCommitDLSN(_message.Message):
    __slots__ = ("commit_dlsn", "topic_id", "partition", "offset", "leader_epoch", "metadata", "commit_time_ms", "tombstone", "expire_time_ms")
    COMMIT_DLSN_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    commit_dlsn: bytes
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_time_ms: int
    tombstone: bool
    expire_time_ms: int
    def __init__(self, commit_dlsn: _Optional[bytes] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., metadata: _Optional[str] = ..., commit_time_ms: _Optional[int] = ..., tombstone: _Optional[bool] = ..., expire_time_ms: _Optional[int] = ...) -> None: ...
