# pyright: basic
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Subscription(_message.Message):
    __slots__ = ("name", "segment_id", "last_commit_dlsn", "format", "last_commits", "snapshot_id", "past_segments", "store", "checksum")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMIT_DLSN_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMITS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    PAST_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    name: str
    segment_id: int
    last_commit_dlsn: bytes
    format: int
    last_commits: _containers.RepeatedScalarFieldContainer[bytes]
    snapshot_id: int
    past_segments: _containers.RepeatedCompositeFieldContainer[PastSegment]
    store: int
    checksum: int
    def __init__(self, name: _Optional[str] = ..., segment_id: _Optional[int] = ..., last_commit_dlsn: _Optional[bytes] = ..., format: _Optional[int] = ..., last_commits: _Optional[_Iterable[bytes]] = ..., snapshot_id: _Optional[int] = ..., past_segments: _Optional[_Iterable[_Union[PastSegment, _Mapping]]] = ..., store: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class PastSegment(_message.Message):
    __slots__ = ("segment_id", "closed_ms", "snapshot_id")
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLOSED_MS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    segment_id: int
    closed_ms: int
    snapshot_id: int
    def __init__(self, segment_id: _Optional[int] = ..., closed_ms: _Optional[int] = ..., snapshot_id: _Optional[int] = ...) -> None: ...

class AdvanceLastCommitDLSN(_message.Message):
    __slots__ = ("commit_dlsn", "topic_id", "partition", "offset", "leader_epoch", "metadata", "commit_time_ms", "tombstone", "expire_time_ms", "note", "more", "base", "producer_id", "producer_epoch", "commits", "note_key")
    COMMIT_DLSN_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    NOTE_KEY_FIELD_NUMBER: _ClassVar[int]
    commit_dlsn: bytes
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_time_ms: int
    tombstone: bool
    expire_time_ms: int
    note: bytes
    more: bool
    base: bool
    producer_id: int
    producer_epoch: int
    commits: bool
    note_key: str
    def __init__(self, commit_dlsn: _Optional[bytes] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., metadata: _Optional[str] = ..., commit_time_ms: _Optional[int] = ..., tombstone: _Optional[bool] = ..., expire_time_ms: _Optional[int] = ..., note: _Optional[bytes] = ..., more: _Optional[bool] = ..., base: _Optional[bool] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., commits: _Optional[bool] = ..., note_key: _Optional[str] = ...) -> None: ...
