"""Goal: no handler does anything for a principal that lacks the right, and the table is complete.

Method: a whole gateway with an authorizer in this process. Each case of tests/compat/rights is
asked
in every version with no right, with each right taken away in turn, and with all of them. The table
of rights is compared with what the handlers asked the authorizer. Mistakes are planted: the same
tests must find each of them.
"""

import asyncio
import inspect
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from gateway.access import Operation, Resource, ResourceType
from gateway.cluster.peers import PEER_CLIENT_ID
from gateway.config import Authorization, GatewayConfig
from gateway.core.acls import Acl, Pattern, PatternType, Permission
from gateway.handlers import k01_fetch, k35_describe_log_dirs
from gateway.handlers.api import ConnectionEnds, Peer
from gateway.handlers.rights import RIGHTS, Right
from gateway.handlers.table import rows
from gateway.process.embedded import start_embedded
from gateway.server.dispatch import Dispatcher
from gateway.wire.messages import PRIVATE_KEY, decode_response, encode_request
from tests.batches import raw_batch, record
from tests.compat.rights.all_cases import CASES
from tests.compat.rights.cases import fetched
from tests.compat.rights.language import (
    GROUP,
    ID,
    NOTE,
    OTHER,
    TOPIC,
    VALUE,
    Need,
    on_cluster,
    on_group,
    on_id,
    on_topic,
    transactional,
)
from tests.compat.rights.world import (
    MARKS,
    denials,
    grants,
    pattern_of,
    preparation,
    versions_of,
)

pytestmark = pytest.mark.real_loop

ADMIN, ANN = "User:root", "User:ann"
TOPIC_DENIED = ErrorCode.topic_authorization_failed
NOT_YET = (
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_or_partition,
)


class Counting:
    """Passes questions on to an authorizer, and notes them by the API that asks."""

    def __init__(self, inner):
        self.inner = inner
        self.key = 0
        self.asked = set()

    def allows(self, principal, host, operation, resource):
        self.asked.add((self.key, Right(operation, resource.kind)))
        return self.inner.allows(principal, host, operation, resource)

    def allows_any(self, principal, host, operation, kind):
        self.asked.add((self.key, Right(operation, kind)))
        return self.inner.allows_any(principal, host, operation, kind)


class World:
    """A gateway with an authorizer, and the resources of the cases."""

    def __init__(self, running):
        self.ctx = running.ctx
        self.dispatcher = Dispatcher(rows(), running.ctx)
        self.peers = {}
        self.facts = None

    async def raw(self, key, version, fields, principal=ANN, client="c", peer=None):
        """Return the bytes of an answer, or None if the connection ends."""
        peer = peer or Peer("127.0.0.2", 1, "127.0.0.1", 2, principal=principal)
        frame = encode_request(key, version, 7, client, fields)
        request, handle = self.dispatcher.open(frame, peer)
        try:
            result = self.dispatcher.start(request, handle)
            if inspect.isawaitable(result):
                async with asyncio.timeout(60):
                    result = await result
        except ConnectionEnds:
            return None
        return b"".join(self.dispatcher.encode(request, result))

    async def ask(self, key, version, fields, principal=ANN, client="c", peer=None):
        answer = await self.raw(key, version, fields, principal, client, peer)
        return None if answer is None else decode_response(key, version, answer).body

    async def prepare(self):
        making, answer = preparation(), None
        try:
            while True:
                key, version, fields = making.send(answer)
                answer = await self._settled(key, version, fields)
        except StopIteration as made:
            self.facts = made.value

    async def _settled(self, key, version, fields):
        async with asyncio.timeout(60):
            while True:
                answer = await self.ask(key, version, fields, ADMIN)
                if not any(f"{code.name}:" in repr(answer) for code in NOT_YET):
                    return answer
                await asyncio.sleep(0.02)

    async def set_rights(self, needs, permission=Permission.ALLOW):
        """Give these rights to everyone, and no others."""
        acls = self.ctx.acls
        for acl in list(acls.rules()):
            await acls.remove(acl.pattern, [acl])
        await self.give(needs, permission)

    async def give(self, needs, permission=Permission.ALLOW):
        for need in needs:
            pattern = Pattern(need.kind, need.name, pattern_of(need))
            acl = Acl(pattern, "User:*", "*", need.operation, permission)
            await self.ctx.acls.add(pattern, [acl])

    async def take(self, need):
        pattern = Pattern(need.kind, need.name, pattern_of(need))
        await self.ctx.acls.remove(
            pattern, [Acl(pattern, "User:*", "*", need.operation, Permission.ALLOW)]
        )


@asynccontextmanager
async def started(**authorization):
    authorization = {"super_users": (ADMIN,), **authorization}
    with TemporaryDirectory() as directory:
        config = GatewayConfig(
            data=Path(directory),
            port=0,
            ledger_port=None,
            journal_sync="never",
            authorization=Authorization(authorizer="standard", **authorization),
        )
        running = await start_embedded(config)
        try:
            world = World(running)
            await world.prepare()
            yield world
        finally:
            await running.stop()


async def faults_of(world, cases=CASES):
    """Return what is wrong with the answers of the cases: a line for each."""
    faults = []
    for case in cases:
        answers = await _answers(world, case)
        for (name, version), raw in answers.items():
            if name != "all" and raw and any(mark in raw for mark in MARKS):
                faults.append(f"{case} v{version} {name}: shows what it must hide")
            faults += _compared(case, name, version, raw, answers["all", version])
    return faults


async def _answers(world, case):
    """Return the bytes of the answers to a case, by the name of the rights and the version."""
    answers = {}
    for name, needs in grants(case):
        await world.set_rights(needs)
        for version in versions_of(case):
            fields = case.body(world.facts, version)
            answers[name, version] = await world.raw(case.key, version, fields)
    return answers


def _compared(case, name, version, raw, granted):
    if raw is None or granted is None:
        return [f"{case} v{version} {name}: the connection ended"]
    if name == "all":
        return []
    found = denials(decode_response(case.key, version, raw).body)
    allowed = denials(decode_response(case.key, version, granted).body)
    # Where the version has no field for a code, less is in the answer.
    if raw == granted:
        return [f"{case} v{version} {name}: is answered as with all rights"]
    refused = found and found != allowed
    if not case.hides and not refused and (case.key, version) not in _WITHOUT_CODE:
        return [f"{case} v{version} {name}: is not refused"]
    return []


_WITHOUT_CODE = {(35, 1), (35, 2)}  # DescribeLogDirs before v3


async def test_no_handler_answers_without_the_right():
    async with started() as world:
        counting = world.ctx.authorizer = Counting(world.ctx.acls)
        faults = []
        for key in sorted({case.key for case in CASES}):
            counting.key = key
            faults += await faults_of(world, [case for case in CASES if case.key == key])
        assert not faults, "\n".join(faults)
        assert _unasked(counting.asked) == []


def _unasked(asked):
    """Return the rights of the table that no handler asked for, but those of private requests."""
    wanted = {(key, right) for key, rights in RIGHTS.items() for right in rights}
    return sorted(f"{key}: {right}" for key, right in wanted - asked if key not in (PRIVATE_KEY, 9))


def test_the_table_has_every_api_and_each_right_has_a_case():
    assert RIGHTS.keys() == {*rows(), PRIVATE_KEY}
    needed = {(case.key, need.right) for case in CASES for need in case.needs}
    table = {(key, right) for key, rights in RIGHTS.items() for right in rights}
    implied = {(20, Right(Operation.DESCRIBE, ResourceType.TOPIC))}
    of_peers = {(9, Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER))}
    private = {(PRIVATE_KEY, right) for right in RIGHTS[PRIVATE_KEY]}
    assert table - needed - implied == of_peers | private
    assert needed <= table


async def test_a_question_that_the_table_lacks_fails():
    with patch.dict("gateway.handlers.rights._ASKED", {16: frozenset()}):
        async with started() as world:
            with pytest.raises(AssertionError, match="key 16"):
                await world.ask(16, 4, {"states_filter": []})


# planted mistakes


async def test_a_route_that_skips_the_table_is_found(monkeypatch):
    monkeypatch.setattr(k35_describe_log_dirs, "allows_cluster", lambda *_: True)
    cases = [case for case in CASES if case.key == 35]
    async with started() as world:
        assert len(await faults_of(world, cases)) == len(versions_of(cases[0]))


async def test_a_right_that_is_checked_only_when_a_session_begins_is_found(monkeypatch):
    kept = {}

    def first(request, ctx, session):
        return kept.setdefault(session, frozenset())

    monkeypatch.setattr(k01_fetch, "_denied", first)
    monkeypatch.setattr(k01_fetch, "_may_read", lambda *_: True)
    with pytest.raises(AssertionError):
        await test_a_right_taken_away_under_an_open_session_counts_at_once()


# named regressions


async def test_a_batch_of_a_transaction_needs_the_right_to_its_id_wherever_it_is():
    """CVE-2018-17196: a Produce could pass by the ACL of a transactional id."""
    async with started() as world:
        await world.set_rights([on_topic("WRITE"), on_topic("WRITE", OTHER)])
        plain = raw_batch(record(0, 0, None, VALUE))
        inside = transactional(world.facts)
        for records in ([plain, inside], [inside, plain], [plain + inside]):
            data = [
                {"name": name, "partition_data": [{"index": 0, "records": each}]}
                for name, each in zip((OTHER, TOPIC), records, strict=False)
            ]
            body = {"transactional_id": ID, "acks": -1, "timeout": 1000, "topic_data": data}
            answer = await world.ask(0, 9, body)
            codes = {
                row.error_code for topic in answer.responses for row in topic.partition_responses
            }
            assert ErrorCode.none not in codes, records
        assert await world.ask(0, 9, {**body, "acks": 0}) is None  # the connection ends


async def test_a_client_that_poses_as_a_replica_gets_no_record():
    """CVE-2018-1288: a Fetch with the id of a replica could interfere with replication."""
    async with started() as world:
        await world.set_rights([on_topic("READ")])
        for version in (4, 12):
            fields = {**fetched(world.facts, TOPIC), "replica_id": 1}
            raw = await world.raw(1, version, fields)
            assert VALUE not in raw
            assert denials(decode_response(1, version, raw).body)


def session_of(world, *names, wait_ms=0):
    fields = fetched(world.facts, *names)
    return {**fields, "session_id": 0, "session_epoch": 0, "max_wait": wait_ms}


def next_of(session_id, epoch, wait_ms=0):
    return {
        "replica_id": -1,
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1_000_000,
        "session_id": session_id,
        "session_epoch": epoch,
        "topics": [],
    }


async def test_a_right_taken_away_under_an_open_session_counts_at_once():
    async with started() as world:
        await world.set_rights([on_topic("READ"), on_topic("READ", OTHER)])
        first = await world.ask(1, 11, session_of(world, TOPIC, OTHER))
        assert first.session_id and VALUE in repr(first).encode()
        await world.take(on_topic("READ"))
        again = await world.ask(1, 11, next_of(first.session_id, 1))
        codes = {row.topic: row.partitions[0].error_code for row in again.responses}
        assert codes.get(TOPIC) is TOPIC_DENIED
        assert await resumed(world, first.session_id)


async def resumed(world, session_id):
    """Return whether a session has the records of a topic again, once its right is given back."""
    await world.give([on_topic("READ")])
    again = await world.ask(1, 11, next_of(session_id, 2))
    return TOPIC in [
        row.topic for row in again.responses if row.partitions[0].error_code is ErrorCode.none
    ]


async def test_a_right_taken_away_while_a_fetch_waits_counts_for_its_answer():
    async with started() as world:
        await world.set_rights([on_topic("READ")])
        fields = session_of(world, TOPIC, wait_ms=20_000)
        fields["topics"][0]["partitions"] = [
            {**fields["topics"][0]["partitions"][0], "partition": 2}
        ]
        fields["min_bytes"] = 1
        waiting = asyncio.create_task(world.raw(1, 11, fields))
        while not world.ctx.fetch_sessions.partitions_held:
            await asyncio.sleep(0)
        await world.take(on_topic("READ"))
        batch = [{"index": 2, "records": raw_batch(record(0, 0, None, VALUE))}]
        data = [{"name": TOPIC, "partition_data": batch}]
        produce = {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": data}
        await world.ask(0, 9, produce, ADMIN)
        raw = await waiting
        assert VALUE not in raw
        assert denials(decode_response(1, 11, raw).body) == [TOPIC_DENIED.name]


async def test_many_partitions_of_one_request_are_refused_without_a_look_at_them():
    async with started() as world:
        row = fetched(world.facts, TOPIC)["topics"][0]["partitions"][0]
        fields = fetched(world.facts, TOPIC, "rights-none")
        for topic in fields["topics"]:
            topic["partitions"] = [{**row, "partition": at} for at in range(2_000)]
        answer = await world.ask(1, 11, fields)
        codes = [row.error_code for topic in answer.responses for row in topic.partitions]
        assert codes == 4_000 * [TOPIC_DENIED]


async def test_a_topic_that_is_created_again_has_the_acls_of_its_name():
    async with started() as world:
        await world.set_rights([on_topic("READ")], Permission.DENY)
        await world.give([Need(Operation.READ, ResourceType.TOPIC, "*")])
        before = world.facts.ids[TOPIC]
        gone = {"topics": [{"name": TOPIC, "topic_id": None}], "timeout": 9_000}
        await world.ask(20, 6, gone, ADMIN)
        new = [{"name": TOPIC, "num_partitions": 1, "replication_factor": 1}]
        made = await world.ask(19, 7, {"topics": new, "timeout": 9_000}, ADMIN)
        now = made.topics[0].topic_id
        assert now != before
        for topic_id, code in ((now, TOPIC_DENIED), (before, ErrorCode.unknown_topic_id)):
            fields = fetched(world.facts._replace(ids={TOPIC: topic_id}), TOPIC)
            answer = await world.ask(1, 13, fields)
            assert answer.responses[0].partitions[0].error_code is code


async def test_a_client_named_like_a_gateway_needs_the_right_of_one():
    async with started() as world:
        await world.set_rights([on_group("DESCRIBE"), on_topic("DESCRIBE")])
        group = {"group_id": GROUP, "topics": None}
        fields = {"groups": [group], "require_stable": False}
        as_client = await world.ask(9, 8, fields)
        posing = await world.ask(9, 8, fields, client=PEER_CLIENT_ID)
        assert posing == as_client
        assert NOTE in repr(posing)
        await world.give([on_cluster("CLUSTER_ACTION")])
        as_gateway = await world.ask(9, 8, fields, client=PEER_CLIENT_ID)
        assert as_gateway != as_client  # it is asked for the offsets of read-only groups here
        await world.set_rights([on_cluster("CLUSTER_ACTION")])
        refused = await world.ask(9, 8, fields, client=PEER_CLIENT_ID)
        assert refused.groups[0].error_code is ErrorCode.group_authorization_failed


async def test_a_topic_that_is_hidden_looks_like_one_that_does_not_exist():
    hidden = [
        case
        for case in CASES
        if case.key in (2, 8, 9, 21, 23, 28, 37, 47, 61) or case.name == "topics-by-name"
    ]
    async with started() as world:
        others = [on_group("READ"), on_group("DESCRIBE"), on_group("DELETE"), on_id("WRITE")]
        await world.set_rights(others)
        asked = [(case, version) for case in hidden for version in versions_of(case)]
        by_id = {(8, 10), (9, 10)}  # ids are no secret
        for case, version in asked:
            if (case.key, version) in by_id:
                continue
            fields = case.body(world.facts, version)
            told = await world.raw(case.key, version, fields)
            renamed = _renamed(fields, {TOPIC: "absent-t", OTHER: "absent-u"})
            other = await world.raw(case.key, version, renamed)
            other = other.replace(b"absent-t", TOPIC.encode())
            assert told == other.replace(b"absent-u", OTHER.encode()), case


def _renamed(value, names):
    if isinstance(value, dict):
        return {key: _renamed(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, names) for each in value]
    return names.get(value, value) if isinstance(value, str) else value


async def test_an_id_does_not_show_the_name_of_its_topic():
    async with started() as world:
        named = [{"name": None, "topic_id": each} for each in (world.facts.ids[TOPIC], UUID(int=9))]
        raw = await world.raw(3, 12, {"topics": named, "allow_auto_topic_creation": True})
        assert TOPIC.encode() not in raw
        answer = decode_response(3, 12, raw).body
        assert {row.name for row in answer.topics} == {None}
        by_id = {"topics": [named[0]], "timeout": 1000}
        assert TOPIC.encode() not in await world.raw(20, 6, by_id)


async def test_a_denied_principal_gets_nothing_that_everyone_else_gets():
    async with started(allow_everyone=True) as world:
        await world.set_rights([])
        assert VALUE in await world.raw(1, 11, fetched(world.facts, TOPIC))
        pattern = Pattern(ResourceType.TOPIC, TOPIC, PatternType.LITERAL)
        deny = Acl(pattern, "User:eve", "*", Operation.ALL, Permission.DENY)
        await world.ctx.acls.add(pattern, [deny])
        assert VALUE not in await world.raw(1, 11, fetched(world.facts, TOPIC), "User:eve")
        assert VALUE not in await world.raw(1, 11, fetched(world.facts, TOPIC))  # there is an ACL
        resource = Resource(ResourceType.TOPIC, TOPIC)
        assert world.ctx.acls.decide("User:eve", "", Operation.READ, resource).acl == deny
