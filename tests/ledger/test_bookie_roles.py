"""Goal: a bookie permits each peer what the roles of its certificate permit, on each transport.

Method: one real bookie behind both servers; for each role a client with a certificate of it sends
every operation, and the statuses are compared with the table. A refusal is PERMISSION_DENIED in the
body, and has no effect. A foreign authority gets no connection.
"""

import asyncio

import pytest

from ledger.adapters.grpc.grpc_bookies import GrpcBookies
from ledger.adapters.grpc.grpc_config import GrpcClientConfig, GrpcServerConfig
from ledger.adapters.links.link_config import TlsFiles
from ledger.adapters.links.tls_identity import TlsIdentity
from ledger.adapters.tcp.tcp_bookies import TcpBookies
from ledger.adapters.tcp.tcp_config import TcpClientConfig, TcpServerConfig
from ledger.bookie.grpc_server import BookieServer
from ledger.bookie.in_process import open_local_bookie
from ledger.bookie.tcp_server import TcpServer
from ledger.core.bookie_roles import FOR_ALL, PERMITTED, Operation, Role, permitted
from ledger.ports.bookies import BookieInfo, Status
from ledger.wire import bookie_pb2 as pb
from tests.ledger.authority import Authority
from tests.ledger.bookie_rig import KEY
from tests.ledger.remote_world import CONFIG
from tests.ledger.transports import CONNECT_S
from tests.sim.bookie_world import entry_buffers

pytestmark = pytest.mark.real_loop

KEPT, NEW = 7, 8  # a ledger with an entry, and one that the bookie has never seen
NOBODY, FOREIGN = "no role", "foreign authority"
PEERS = (*Role, NOBODY, FOREIGN)


class Rig:
    """A bookie with both servers, and the certificates of every kind of peer."""

    def __init__(self, path, *, roles=True):
        self.path = path
        self.checked = roles
        self.authority = Authority(path / "ours", "our authority")
        foreign = Authority(path / "theirs", "another authority").files("auditor")
        ca = self.authority.path / "ca.pem"
        self.files = {
            **{role: self.authority.files(role) for role in Role},
            NOBODY: self.authority.files("somebody"),
            FOREIGN: TlsFiles(cert=foreign.cert, key=foreign.key, ca=ca),
        }

    async def __aenter__(self):
        self.opened = await open_local_bookie(self.path / "bookie", config=CONFIG)
        self.bookie = self.opened.bookie
        self.identity = TlsIdentity(self._unless_checked(self.files[Role.BOOKIE]))
        self.tcp = TcpServer(self.bookie, TcpServerConfig(hello_timeout_s=CONNECT_S), self.identity)
        slow = GrpcServerConfig(hello_timeout_s=CONNECT_S)
        self.grpc = BookieServer(self.bookie, slow, self.identity, self.tcp.rooms)
        self.places = {
            self.bookie.bookie_id: BookieInfo(
                tcp_port=await self.tcp.start("127.0.0.1", 0),
                port=await self.grpc.start("127.0.0.1", 0),
            )
        }
        added = asyncio.get_running_loop().create_future()
        self.bookie.add(KEPT, 0, KEY, entry_buffers(KEPT, 0, b"x"), added.set_result)
        assert await added is Status.OK
        return self

    async def __aexit__(self, *_):
        await self.tcp.stop(0)
        await self.grpc.stop(0)
        await self.opened.close()

    def _unless_checked(self, files):
        return TlsFiles(cert=files.cert, key=files.key, ca=files.ca, roles=self.checked)

    def client(self, peer, transport):
        files = self._unless_checked(self.files[peer])
        if transport == "grpc":
            config = GrpcClientConfig(connect_timeout_s=CONNECT_S)
            return GrpcBookies(lambda: self.places, config, files)
        return TcpBookies(lambda: self.places, TcpClientConfig(connect_timeout_s=CONNECT_S), files)


async def added(port, name, ledger, entry, *, recovery):
    told = asyncio.get_running_loop().create_future()
    body = entry_buffers(ledger, entry, b"y")
    port.add(name, ledger, entry, KEY, body, told.set_result, recovery=recovery)
    return await told


async def info(port, name):
    """The call that no method of the port uses: its answer has no status."""
    link = port._link(name)
    answer = await link.call("Info", pb.InfoRequest().SerializeToString())
    if answer is None:
        return link.refusal
    return Status.OK if pb.InfoReply.FromString(answer).bookie == name else Status.WRONG_INSTANCE


async def status_of(call):
    reply = await call
    return reply if isinstance(reply, Status) else reply.status


async def fenced_many(port, name):
    (reply,) = await port.fence_many(name, [(NEW, KEY)])
    return reply.status


SENT = {
    Operation.INFO: info,
    Operation.READ: lambda port, name: status_of(port.read(name, KEPT, 0)),
    Operation.READ_MANY: lambda port, name: status_of(port.read_many(name, KEPT, 0, 9, 1 << 20)),
    Operation.WAIT_LAC: lambda port, name: status_of(port.wait_lac(name, KEPT, -1, 0.001)),
    Operation.READ_LAC: lambda port, name: status_of(port.read_lac(name, KEPT)),
    Operation.LIST_ENTRIES: lambda port, name: status_of(port.list_entries(name, KEPT)),
    Operation.STATS: lambda port, name: status_of(port.stats(name)),
    Operation.LOCATE: lambda port, name: status_of(port.locate(name, KEPT, 0)),
    Operation.ADD: lambda port, name: added(port, name, NEW, 0, recovery=False),
    Operation.RECOVERY_ADD: lambda port, name: added(port, name, NEW, 0, recovery=True),
    Operation.WRITE_LAC: lambda port, name: port.write_lac(name, KEPT, KEY, 0),
    Operation.FENCE: lambda port, name: status_of(port.read(name, NEW, -1, fence_key=KEY)),
    Operation.FENCE_MANY: fenced_many,
    Operation.END_LIMBO: lambda port, name: port.end_limbo(name, KEPT, KEY),
}
"""How a client sends each operation. Each succeeds if it is permitted."""


def sent(operation, port, name):
    return SENT[operation](port, name)


def expected(peer, operation, transport):
    if peer == FOREIGN:
        return Status.UNREACHABLE
    # Over gRPC many fences are single ones.
    asked = Operation.FENCE if (operation, transport) == (Operation.FENCE_MANY, "grpc") else None
    rights = FOR_ALL if peer == NOBODY else PERMITTED[peer]
    if (asked or operation) not in rights:
        return Status.PERMISSION_DENIED
    return Status.OK


# In this order only the last ones of the list change the ledgers that others look at.
ORDER = tuple(Operation)


@pytest.mark.parametrize("transport", ["tcp", "grpc"])
@pytest.mark.parametrize("peer", PEERS)
async def test_every_operation_of_every_role_is_answered_as_the_table_says(
    tmp_path, peer, transport
):
    async with Rig(tmp_path) as rig:
        name, found = rig.bookie.bookie_id, {}
        port = rig.client(peer, transport)
        for operation in ORDER:
            found[operation] = await sent(operation, port, name)
        assert found == {each: expected(peer, each, transport) for each in ORDER}
        await port.close()
        if peer in (Role.BOOKIE, Role.READER, NOBODY, FOREIGN):
            # What was refused had no effect: no ledger began, and the writer goes on.
            assert rig.bookie.ledgers() == [KEPT]
            writer = rig.client(Role.GATEWAY, transport)
            assert await added(writer, name, KEPT, 1, recovery=False) is Status.OK
            await writer.close()


async def test_refused_adds_share_a_connection_with_reads_that_are_answered(tmp_path):
    async with Rig(tmp_path) as rig:
        name = rig.bookie.bookie_id
        for transport in ("tcp", "grpc"):
            port = rig.client(Role.READER, transport)
            adds = [added(port, name, NEW, each, recovery=bool(each % 2)) for each in range(200)]
            reads = [status_of(port.read(name, KEPT, 0)) for _ in range(20)]
            found = await asyncio.gather(*adds, *reads)
            assert found == [Status.PERMISSION_DENIED] * 200 + [Status.OK] * 20
            await port.close()


async def test_the_rights_of_several_roles_add_up(tmp_path):
    async with Rig(tmp_path) as rig:
        name = rig.bookie.bookie_id
        rig.files["both"] = rig.authority.files("both", roles=[Role.READER, Role.AUDITOR])
        port = rig.client("both", "tcp")
        assert await port.end_limbo(name, KEPT, KEY) is Status.OK
        assert (await port.locate(name, KEPT, 0)).status is Status.OK
        assert await added(port, name, NEW, 0, recovery=False) is Status.PERMISSION_DENIED
        await port.close()


@pytest.mark.parametrize("transport", ["tcp", "grpc"])
async def test_without_roles_every_certificate_of_the_authority_may_do_everything(
    tmp_path, transport
):
    async with Rig(tmp_path, roles=False) as rig:
        port = rig.client(NOBODY, transport)
        for operation in ORDER:
            status = await sent(operation, port, rig.bookie.bookie_id)
            assert status is Status.OK, operation
        await port.close()


@pytest.mark.parametrize("transport", ["tcp", "grpc"])
@pytest.mark.parametrize("peer", [Role.GATEWAY, Role.AUDITOR, Role.READER, NOBODY])
async def test_a_client_sends_nothing_to_a_server_without_the_role_of_a_bookie(
    tmp_path, peer, transport
):
    rig = Rig(tmp_path)
    rig.files[Role.BOOKIE] = rig.files[peer]
    async with rig:
        port = rig.client(Role.AUDITOR, transport)
        statuses = [await sent(each, port, rig.bookie.bookie_id) for each in Operation]
        assert set(statuses) == {Status.UNREACHABLE}
        assert rig.bookie.ledgers() == [KEPT]
        await port.close()


@pytest.mark.parametrize("transport", ["tcp", "grpc"])
async def test_a_name_of_another_type_with_the_text_of_a_role_gives_none(tmp_path, transport):
    async with Rig(tmp_path) as rig:
        names = {"dns": [Role.AUDITOR.uri], "mail": [f"{Role.GATEWAY.uri}@example.com"]}
        near = ["ledger-gateway:role:Auditor", "ledger-gateway:role:auditor/", "urn:x:gateway"]
        rig.files["disguised"] = rig.authority.files("disguised", uris=near, **names)
        port = rig.client("disguised", transport)
        assert (await port.read(rig.bookie.bookie_id, KEPT, 0)).status is Status.PERMISSION_DENIED
        await port.close()


def test_the_table_holds_the_promises_of_the_documents():
    taking = {Operation.FENCE, Operation.FENCE_MANY, Operation.RECOVERY_ADD}
    for role in Role:
        rights = permitted([role])
        assert bool(rights & taking) == (role in (Role.GATEWAY, Role.AUDITOR))
        assert (Operation.END_LIMBO in rights) == (role is Role.AUDITOR)
        assert (Operation.ADD in rights) == (role is Role.GATEWAY)
    assert Operation.LOCATE in permitted([Role.READER])
    assert permitted([]) == FOR_ALL == permitted([Role.BOOKIE])
    assert permitted(None) == frozenset(Operation)
