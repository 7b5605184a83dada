# pyright: basic
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CurrentAssignment(_message.Message):
    __slots__ = ("epoch", "previous_epoch", "state", "assigned", "revoking")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    REVOKING_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    previous_epoch: int
    state: int
    assigned: _containers.RepeatedCompositeFieldContainer[HeldPartitions]
    revoking: _containers.RepeatedCompositeFieldContainer[HeldPartitions]
    def __init__(self, epoch: _Optional[int] = ..., previous_epoch: _Optional[int] = ..., state: _Optional[int] = ..., assigned: _Optional[_Iterable[_Union[HeldPartitions, _Mapping]]] = ..., revoking: _Optional[_Iterable[_Union[HeldPartitions, _Mapping]]] = ...) -> None: ...

class HeldPartitions(_message.Message):
    __slots__ = ("topic_id", "epoch", "partitions")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    epoch: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic_id: _Optional[bytes] = ..., epoch: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...
