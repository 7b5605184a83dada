"""Goal: the page works where the address for clients means nothing to the gateway itself.

Method: a gateway that advertises a host that does not exist, as one behind a port mapping does.
"""

from __future__ import annotations

import socket

import pytest

from gateway.admin.addresses import parse_bootstrap
from tests.gateway.page_rig import PageRig, ask
from tests.gateway.records_rig import found, posted

pytestmark = [pytest.mark.process]

NOWHERE = "gateway.invalid"


@pytest.fixture(scope="module", params=["a name that does not resolve", "a port of another"])
def far(request, tmp_path_factory):
    """A gateway whose address for clients leads nowhere, or to a server that is no broker."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = {"advertised_host": NOWHERE}
        if "port" in request.param:
            port = other.getsockname()[1]
            address = {"advertised_host": "127.0.0.1", "advertised_port": port}
        with PageRig(tmp_path_factory.mktemp("far") / "data", **address) as rig:
            port = rig.serve(write=True)
            assert ask(port, "/").status == 200
            yield port, rig.applications[port].site


def test_topics_and_records_are_written_and_read_where_the_advertised_address_leads_nowhere(far):
    port, site = far
    for name in ("far", "copy"):
        status, made = posted(port, site, "/topics/create", name=name, confirm=name)
        assert status == 200, made
    assert found(port, "/topics/far/messages")["rows"] == []  # its leader was asked
    status, done = posted(port, site, "/topics/far/produce", confirm="far", key="k", value="v")
    assert (status, done["offset"]) == (200, 0), done
    assert [row["value"] for row in found(port, "/topics/far/messages")["rows"]] == ["v"]
    status, done = posted(port, site, "/topics/far/copy", to="copy", confirm="copy")
    assert (status, done["copied"]) == (200, 1), done
    (row,) = found(port, "/topics/copy/messages")["rows"]
    assert (row["key"], row["value"]) == ("k", "v")


def test_this_gateway_is_reached_by_its_number_and_never_by_the_address_of_another(far):
    _, site = far
    own = parse_bootstrap(site.bootstrap)[0]
    me = site.ctx.cluster.node_id
    assert site.reach(me, "127.0.0.1", 1) == site.reach(me, NOWHERE, 9_092) == own
    assert site.reach(me + 1, *own) == own  # of a broker that has left: as it was advertised
