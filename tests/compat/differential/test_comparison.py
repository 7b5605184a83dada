"""Goal: the comparison finds each difference, and nothing that may differ.

Method: answers of CreateTopics and Metadata are encoded by hand, with other ids, nodes and epochs;
a recorded answer is changed byte by byte.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from gateway.wire.messages import encode_response
from tests.compat.differential.connection import Frame
from tests.compat.differential.intended import INTENDED
from tests.compat.differential.outcome import Difference, Recorded, outcome
from tests.compat.differential.play import Played
from tests.compat.differential.recording import recorded_cases, same_steps
from tests.compat.differential.script import batch
from tests.compat.differential.steps import Step, Taken, step_from_json, step_to_json

METADATA, CREATE_TOPICS, FETCH, HEARTBEAT = 3, 19, 1, 68


def difference_between(
    kafka: Frame, ours: Frame, key: int = METADATA, version: int = 12, own: str = ""
) -> list[Difference]:
    step = Step("ask", key, version, {}, own=own)
    recorded = Recorded("by-hand", key, version, (step,), (kafka,))
    return list(outcome(recorded, [Played(b"", ours)]))


def metadata(
    names: list[str], *, ids: int = 0, node: int = 1, epoch: int = 0, repeated: bool = False
) -> bytes:
    def topic(at: int, name: str) -> dict[str, Any]:
        partition = {"leader_id": node, "leader_epoch": epoch, "replica_nodes": [node]}
        place = 0 if repeated else at
        topic_id = UUID(int=ids + place + 1)
        return {"name": name, "topic_id": topic_id, "partitions": [partition]}

    brokers = [{"node_id": node, "host": f"host-{node}", "port": 9000 + node}]
    body = {
        "brokers": brokers,
        "cluster_id": f"cluster-{node}",
        "controller_id": node,
        "topics": [topic(at, name) for at, name in enumerate(names)],
    }
    return b"".join(encode_response(METADATA, 12, 1, body))


def test_ids_nodes_addresses_and_later_epochs_may_differ() -> None:
    kafka = metadata(["a", "b"], ids=0, node=1, epoch=3)
    assert difference_between(kafka, metadata(["a", "b"], ids=70, node=4, epoch=9)) == []


def assignment(*topics: tuple[int, list[int]]) -> bytes:
    rows = [{"topic_id": UUID(int=number), "partitions": some} for number, some in topics]
    body = {"member_id": "a", "assignment": {"topic_partitions": rows}}
    return b"".join(encode_response(HEARTBEAT, 1, 1, body))


def test_an_assignment_is_the_same_whichever_id_comes_first() -> None:
    steps = (Step("ask", HEARTBEAT, 1, {}),) * 2
    kafka = assignment((1, [0])), assignment((1, [0]), (2, [0, 1]))
    recorded = Recorded("by-hand", HEARTBEAT, 1, steps, kafka)
    ours = assignment((8, [0])), assignment((7, [0, 1]), (8, [0]))
    assert list(outcome(recorded, [Played(b"", each) for each in ours])) == []
    others = assignment((8, [0])), assignment((7, [0]), (8, [0, 1]))
    assert list(outcome(recorded, [Played(b"", each) for each in others])) != []


def test_the_first_epoch_may_not_differ() -> None:
    found = difference_between(metadata(["a"], epoch=0), metadata(["a"], epoch=1))
    assert [(each.path, each.kafka) for each in found] == [
        ("topics[a].partitions[0].leader_epoch", 0)
    ]


def test_one_id_at_two_places_is_not_equal_to_two_ids() -> None:
    found = difference_between(metadata(["a", "b"]), metadata(["a", "b"], repeated=True))
    assert [each.path for each in found] == ["topics[b].topic_id"]


def test_a_topic_that_one_side_lacks_is_found_with_the_bytes_of_both() -> None:
    kafka, ours = metadata(["a", "b"]), metadata(["a"])
    [found] = difference_between(kafka, ours)
    assert (found.path, found.ours) == ("topics[b]", "<absent>")
    assert kafka.hex() in str(found)
    assert ours.hex() in str(found)


def test_rows_of_other_cases_do_not_count_where_everything_is_listed() -> None:
    kafka, ours = metadata(["mine--a", "other--b"]), metadata(["mine--a"])
    assert difference_between(kafka, ours, own="mine--") == []
    assert difference_between(kafka, ours) != []


def test_a_closed_connection_differs_from_an_answer() -> None:
    assert [each.path for each in difference_between(metadata(["a"]), None)] == [""]
    assert difference_between(None, None) == []


def test_bytes_behind_an_answer_are_a_difference() -> None:
    answer = metadata(["a"])
    assert difference_between(answer, answer + b"\0") != []


def test_every_changed_byte_of_a_recorded_answer_is_found() -> None:
    case = next(each for each in recorded_cases(CREATE_TOPICS) if each.name == "invalid-sizes")
    assert case.version == 2
    for number, answer in enumerate(case.answers):
        assert answer is not None
        for at in range(4, len(answer)):  # behind the correlation id
            changed = bytearray(answer)
            changed[at] ^= 1
            played = [Played(b"", each) for each in case.answers]
            played[number] = Played(b"", bytes(changed))
            assert list(outcome(case, played)), f"step {number}, byte {at}"


def test_a_checksum_that_does_not_fit_is_found() -> None:
    def fetched(records: bytes) -> bytes:
        partition = {"partition_index": 0, "records": records}
        body = {"responses": [{"topic": "a", "partitions": [partition]}]}
        return b"".join(encode_response(FETCH, 4, 1, body))

    def stored(producer: int, *, damaged: bool = False) -> bytes:
        records = bytearray(batch(2).encode({"producer": producer, "epoch": 0, "sequence": 0}))
        records[17] ^= damaged
        return bytes(records)

    kafka = fetched(stored(5))
    assert difference_between(kafka, fetched(stored(8)), FETCH, 4) == []
    [found] = difference_between(kafka, fetched(stored(8, damaged=True)), FETCH, 4)
    assert found.path.endswith("records[0].crc")


def test_a_step_is_the_same_after_it_was_stored() -> None:
    fields = {"id": UUID(int=7), "rows": [batch(2, producer=Taken(0, "producer_id"))], "raw": b"x"}
    step = Step("ask", 3, 9, fields, connection="b", again=("none",), compared=False)
    assert same_steps([step], [step_from_json(step_to_json(step))])
    assert not same_steps([step], [Step("ask", 3, 9, {**fields, "raw": b"y"}, connection="b")])


def test_an_intended_difference_is_bound_to_its_field_and_versions() -> None:
    entry = next(each for each in INTENDED if each.key == CREATE_TOPICS and each.versions.start)
    template = difference_between(metadata(["a"]), metadata(["b"]))[0]

    def covered(path: str, version: int) -> bool:
        changed = {"key": entry.key, "path": path, "version": version}
        names = Difference.__dataclass_fields__
        fields = {name: getattr(template, name) for name in names} | changed
        return entry.covers(Difference(**fields))

    path = entry.path.replace("[*]", "[some-topic]")
    assert covered(path, entry.versions.start)
    assert not covered(path, entry.versions.start - 1)
    assert not covered(path + ".more", entry.versions.start)


def test_rows_of_a_nameless_row_are_compared_if_they_are_the_cases_own() -> None:
    def directory(names: list[str], size: int) -> bytes:
        topics = [{"name": name, "partitions": [{"partition_size": size}]} for name in names]
        return b"".join(encode_response(35, 1, 1, {"results": [{"topics": topics}]}))

    kafka = directory(["own-a", "other"], 1)
    assert difference_between(kafka, directory(["own-a"], 1), 35, 1, own="own-") == []
    found = difference_between(kafka, directory([], 1), 35, 1, own="own-")
    assert [each.path for each in found] == ["results[0].topics[own-a]"]
