"""Goal: a gateway that does not coordinate a group says so in each group API and version, and
nothing else. Method: two gateways on virtual time, asked in Kafka's own bytes.
"""

import dataclasses

import pytest
from kio.schema.errors import ErrorCode

from gateway.handlers.table import rows
from tests.gateway.group_owners import started_brokers
from tests.gateway.test_group_handlers import commit_body, fetch_body, join_body, sync_body

HEARTBEAT = {"generation_id": 1, "member_id": "m", "group_instance_id": None}
LEAVING = {"member_id": "m", "group_instance_id": None, "reason": None}


def body(key, world, version, group):
    match key:
        case 8:
            return commit_body(world, version, group_id=group)
        case 9:
            return fetch_body(world, version, group=group) | {"member_id": None, "member_epoch": -1}
        case 11:
            return join_body("m", group_id=group)
        case 12:
            return {"group_id": group, **HEARTBEAT}
        case 13:
            return {"group_id": group, "member_id": "m", "members": [LEAVING]}
        case 14:
            return sync_body("m", group_id=group)
        case 15:
            return {"groups": [group], "include_authorized_operations": False}
        case 42:
            return {"groups_names": [group]}
        case 47:
            partition = {"partition_index": 0}
            return {"group_id": group, "topics": [{"name": "t", "partitions": [partition]}]}


def errors(answer):
    """Every error code in an answer, whatever it belongs to."""
    found = set()
    for field in dataclasses.fields(answer):
        value = getattr(answer, field.name)
        if isinstance(value, ErrorCode):
            found.add(value)
        for each in value if isinstance(value, tuple) else ():
            if dataclasses.is_dataclass(each):
                found |= errors(each)
    return found


@pytest.mark.parametrize(
    ("key", "version"),
    [(key, v) for key in (8, 9, 11, 12, 13, 14, 15, 42, 47) for v in rows()[key].versions],
)
async def test_who_does_not_coordinate_a_group_says_so(key, version):
    async with started_brokers() as (cluster, gateways):
        (group,) = cluster.groups_of("a", 1)
        other = gateways["b"]
        answer = await other.ask(key, version, body(key, other, version, group))
        assert errors(answer) - {ErrorCode.none} == {ErrorCode.not_coordinator}
        assert other.loaded == {}
