"""Goal: of the gateways of a cluster one serves at a time, and one that may not any more says so.

Method: seats over simulated metadata sessions, on virtual time; sessions are lost on purpose.
"""

import asyncio

import pytest

from gateway.cluster import SEAT, SoleGateway
from gateway.config import GatewayConfig
from ledger.errors import NotOwner
from tests.sim.loop import simulate
from tests.sim.metadata import MetadataFaults, MetadataTree, SimMetadata

SESSION_MS = 1_000


class Seats:
    """Any number of gateways of one cluster."""

    def __init__(self):
        self.tree = MetadataTree()

    def gateway(self, node_id):
        session = SimMetadata(self.tree)
        config = GatewayConfig(zookeeper="z:1", node_id=node_id, session_ms=SESSION_MS)
        return session, SoleGateway(session, config)


def run(scenario):
    async def main():
        await scenario(Seats())

    simulate(main())


def test_a_second_gateway_is_refused_after_it_has_waited_for_a_session():
    async def scenario(seats):
        _, first = seats.gateway(1)
        _, second = seats.gateway(2)
        await first.take()
        await first.tell(9092)
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(NotOwner, match=r"gateway 1 at 127\.0\.0\.1:9092"):
            await second.take()
        assert asyncio.get_running_loop().time() - began_s >= SESSION_MS / 1000

    run(scenario)


def test_of_gateways_that_come_together_one_gets_the_seat():
    async def scenario(seats):
        gateways = [seats.gateway(number)[1] for number in range(5)]
        took = await asyncio.gather(
            *(gateway.take() for gateway in gateways), return_exceptions=True
        )
        assert took.count(None) == 1
        assert sum(isinstance(result, NotOwner) for result in took) == 4

    run(scenario)


def test_a_seat_that_was_left_is_free():
    async def scenario(seats):
        _, first = seats.gateway(1)
        _, second = seats.gateway(2)
        await first.take()
        await first.leave()
        await second.take()

    run(scenario)


def test_a_gateway_whose_session_was_lost_takes_its_seat_again():
    async def scenario(seats):
        session, first = seats.gateway(1)
        await first.take()
        session.expire()
        await asyncio.sleep(3 * SESSION_MS / 1000)
        assert b'"node_id": 1' in seats.tree.get(SEAT).data

    run(scenario)


def test_a_gateway_that_finds_another_one_in_its_seat_says_that_it_is_over():
    async def scenario(seats):
        session, first = seats.gateway(1)
        _, second = seats.gateway(2)
        lost = []
        await first.take()
        first.tell_when_lost(lost.append)
        waiting = asyncio.create_task(second.take())
        seats.tree.delete(SEAT)  # the session's end, as ZooKeeper sees it
        await waiting
        session.expire()
        await asyncio.sleep(SESSION_MS / 1000)  # soon: it does not wait for the other one to go
        assert len(lost) == 1
        assert "gateway 2" in lost[0]
        await first.leave()
        assert b'"node_id": 2' in seats.tree.get(SEAT).data, "it is not the first one's to give up"

    run(scenario)


def test_a_gateway_that_missed_another_ones_turn_is_over_though_the_seat_is_free():
    async def scenario(seats):
        session, first = seats.gateway(1)
        _, second = seats.gateway(2)
        lost = []
        await first.take()
        seats.tree.delete(SEAT)  # the session's end, as ZooKeeper sees it
        await second.take()
        await second.leave()
        session.expire()
        await asyncio.sleep(5 * SESSION_MS / 1000)
        first.tell_when_lost(lost.append)
        assert len(lost) == 1, "also when it is asked for later"
        _, third = seats.gateway(3)
        await third.take()

    run(scenario)


def test_a_gateway_goes_on_asking_for_its_seat_while_the_store_is_away():
    async def scenario(seats):
        session, first = seats.gateway(1)
        lost = []
        await first.take()
        first.tell_when_lost(lost.append)
        session.expire()
        session.faults = MetadataFaults(unsent=1.0)
        await asyncio.sleep(10 * SESSION_MS / 1000)
        session.faults = None
        await asyncio.sleep(1)
        assert b'"node_id": 1' in seats.tree.get(SEAT).data
        assert lost == []

    run(scenario)


def test_the_address_is_not_written_over_another_gateways():
    async def scenario(seats):
        _, first = seats.gateway(1)
        _, second = seats.gateway(2)
        await first.take()
        seats.tree.delete(SEAT)
        await second.take()
        await first.tell(9092)
        assert b'"node_id": 2' in seats.tree.get(SEAT).data

    run(scenario)
