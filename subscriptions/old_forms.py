"""Positions as nodes of the metadata store: a Kafka group's one node each. Pure."""

from __future__ import annotations

from ledger.errors import CorruptFormat
from ledger.ports.metadata import Check, Create, Delete, Node, Op, Set
from subscriptions.positions import (
    Position,
    PositionKey,
    decode_advance,
    encode_advance,
    key_name,
    seal,
    unseal,
)

OPS_MAX = 500  # ZooKeeper takes 1 MiB in one multi


def decode_child(path: str, node: Node) -> tuple[PositionKey, Position]:
    """One position of a group. Raises CorruptFormat."""
    key, position = decode_advance(unseal(node.data, path), path)
    if not path.endswith("/" + key_name(key)):
        raise CorruptFormat(f"{path}: holds a position of {key_name(key)}")
    return key, position


def node_op(path: str, version: int | None, note: bytes | None) -> Op:
    """The group's own node is there and this owner's; a note of None stays as it is."""
    if version is None:
        return Create(path, seal(note or b""))
    return Check(path, version) if note is None else Set(path, seal(note), version)


def position_ops(
    path: str, key: PositionKey, position: Position | None, version: int | None
) -> list[Op]:
    """The node of one position is as wanted; None: it is gone."""
    if position is None:
        return [] if version is None else [Delete(path, version)]
    return [body_op(path, encode_advance(key, position), version)]


def body_op(path: str, body: bytes, version: int | None) -> Op:
    """As `position_ops`, of a position that is encoded already."""
    data = seal(body)
    return Create(path, data) if version is None else Set(path, data, version)
