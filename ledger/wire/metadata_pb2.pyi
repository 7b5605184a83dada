# pyright: basic
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PathRequest(_message.Message):
    __slots__ = ("path", "without_data")
    PATH_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_DATA_FIELD_NUMBER: _ClassVar[int]
    path: str
    without_data: bool
    def __init__(self, path: _Optional[str] = ..., without_data: _Optional[bool] = ...) -> None: ...

class StoredNode(_message.Message):
    __slots__ = ("path", "data", "version")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    path: str
    data: bytes
    version: int
    def __init__(self, path: _Optional[str] = ..., data: _Optional[bytes] = ..., version: _Optional[int] = ...) -> None: ...

class NodesReply(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[StoredNode]
    def __init__(self, nodes: _Optional[_Iterable[_Union[StoredNode, _Mapping]]] = ...) -> None: ...

class ChildrenReply(_message.Message):
    __slots__ = ("found", "names")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    found: bool
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, found: _Optional[bool] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("path", "stop", "number")
    PATH_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    path: str
    stop: bool
    number: int
    def __init__(self, path: _Optional[str] = ..., stop: _Optional[bool] = ..., number: _Optional[int] = ...) -> None: ...

class WatchNews(_message.Message):
    __slots__ = ("path", "armed")
    PATH_FIELD_NUMBER: _ClassVar[int]
    ARMED_FIELD_NUMBER: _ClassVar[int]
    path: str
    armed: int
    def __init__(self, path: _Optional[str] = ..., armed: _Optional[int] = ...) -> None: ...
