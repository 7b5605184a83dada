"""Goal: the page works where the address for clients means nothing to the gateway itself.

Method: a gateway that advertises a host that does not exist, as one behind a port mapping does.
"""

from __future__ import annotations

import pytest

from tests.gateway.page_rig import PageRig, ask
from tests.gateway.records_rig import found, posted

pytestmark = [pytest.mark.process]

NOWHERE = "gateway.invalid"


def test_a_topic_is_created_and_read_although_the_advertised_host_does_not_resolve(tmp_path):
    with PageRig(tmp_path / "data", advertised_host=NOWHERE) as rig:
        port = rig.serve(write=True)
        assert ask(port, "/").status == 200
        site = rig.applications[port].site
        status, made = posted(port, site, "/topics/create", name="far", confirm="far")
        assert status == 200, made
        assert found(port, "/topics/far/messages")["rows"] == []  # its leader was asked
