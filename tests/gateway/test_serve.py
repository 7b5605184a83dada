"""Goal: `gateway serve` says what is wrong with its flags and with what it needs, and exits so.

Method: the command as users run it; what it does once it serves is in tests/cluster/.
"""

import re
import subprocess
import sys

import pytest

from gateway.process import dev, serve
from ledger.command_line.program import flags_of
from tests.node.cluster_rig import laid_out
from tests.peers.gateway import ClusterGateway
from tests.peers.processes import free_port
from tests.peers.zookeeper import ZooKeeper


def ended(*words, timeout_s=60):
    argv = [sys.executable, "-m", "gateway", "serve", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s)
    return done.returncode, done.stdout, done.stderr


def faults(words):
    return serve.faults_of(serve.settings_of(flags_of(serve.serve, words)))


def config(words):
    return serve.config_of(serve.settings_of(flags_of(serve.serve, words)))


def test_every_fault_of_the_flags_is_listed(tmp_path):
    open_key = tmp_path / "key.pem"
    open_key.write_text("")
    open_key.chmod(0o644)
    code, out, err = ended(
        *("--zookeeper", "here", "--port", "70000", "--session-ms", "1"),
        *("--replication-factor", "0", "--workers", "0", "--bookie-tls-key", str(open_key)),
    )
    assert (code, out) == (78, "")
    assert [line.removeprefix("gateway: ").split()[0].rstrip(":") for line in err.splitlines()] == [
        "--zookeeper",
        "--session-ms",
        "--port",
        "--replication-factor",
        "--workers",
        "--bookie-tls-cert",
        "--bookie-tls-ca",
        "--bookie-tls-key",
    ]


def test_the_last_of_several_workers_must_have_a_port_and_a_node_id():
    words = ("--zookeeper", "z:1", "--workers", "3", "--port", "65534", "--node-id", "2147483645")
    code, out, err = ended(*words)
    assert (code, out) == (78, "")
    assert err == "gateway: --workers 3: --port of the last one would be 65536, above 65535\n"


def test_the_last_of_several_workers_must_have_a_metrics_port_too():
    words = ("--zookeeper", "z:1", "--workers", "3", "--metrics-port", "65534")
    code, _, err = ended(*words)
    assert code == 78
    assert err == (
        "gateway: --workers 3: --metrics-port of the last one would be 65536, above 65535\n"
    )


def test_who_listens_anywhere_says_where_clients_find_it():
    words = ["--zookeeper", "z:1", "--host", "0.0.0.0", "--allow-insecure"]
    (fault,) = faults(words)
    assert "--advertised-host" in fault
    words += ["--advertised-host", "gateway-1"]
    assert not faults(words)


def test_gateways_reach_each_other_at_an_address_of_their_own():
    words = ["--zookeeper", "z:1", "--advertised-host", "localhost", "--peer-host", "gateway-1"]
    found = config([*words, "--peer-port", "9192"])
    assert (found.advertised_host, found.peer_host, found.peer_port) == (
        "localhost",
        "gateway-1",
        9192,
    )
    found = config(words)
    assert found.peer_port is None
    for more in (["--peer-port", "0"], ["--peer-port", "9192", "--workers", "2"]):
        (fault,) = faults([*words, *more])
        assert fault.startswith(f"--peer-port {more[1]}: ")


def test_the_store_of_positions_is_chosen_by_a_flag_or_else_by_the_cluster():
    name = "--log-segment-based-subscriptions-store-enabled"
    words = ["--zookeeper", "z:1"]
    chosen = [config([*words, *more]) for more in ([], [name], ["--no-" + name.removeprefix("--")])]
    enabled = [each.log_segment_based_subscriptions_store_enabled for each in chosen]
    assert enabled == [None, True, False]


def test_the_detection_of_slow_bookies_has_three_modes():
    words, flag = ["--zookeeper", "z:1"], "--reader-slow-shards-detection"
    chosen = [
        config([*words, *more]).reader_slow_shards_detection
        for more in ([], [flag, "disabled"], [flag, "observe-only"], [flag, "enabled"])
    ]
    assert chosen == ["enabled", "disabled", "observe-only", "enabled"]
    (fault,) = faults([*words, flag, "on"])
    assert fault == f"{flag} on: must be disabled, observe-only or enabled"


def test_bookies_are_reached_over_tcp_or_grpc():
    words, flag = ["--zookeeper", "z:1"], "--bookie-transport"
    chosen = [
        config([*words, *more]).bookie_transport for more in ([], [flag, "grpc"], [flag, "tcp"])
    ]
    assert chosen == ["tcp", "grpc", "tcp"]
    (fault,) = faults([*words, flag, "udp"])
    assert fault == "--bookie-transport udp: must be tcp or grpc"


@pytest.mark.parametrize(
    ("words", "session_ms", "delay_ms"),
    [
        ([], 10_000, 3_000),
        (["--session", "6s", "--group-initial-rebalance-delay", "500ms"], 6_000, 500),
        (["--session-ms", "6000", "--group-initial-rebalance-delay-ms", "500"], 6_000, 500),
        (["--session", "1m", "--group-initial-rebalance-delay", "0"], 60_000, 0),
        (["--session-ms=400", "--group-initial-rebalance-delay-ms=0"], 400, 0),
        (["--session", "PT1M"], 60_000, 3_000),
    ],
)
def test_durations_have_units_and_the_old_names_mean_what_they_meant(words, session_ms, delay_ms):
    found = config(["--zookeeper", "z:1", *words])
    assert found.session_ms == session_ms
    assert found.groups.initial_rebalance_delay_ms == delay_ms


@pytest.mark.parametrize("command", [dev.dev, serve.serve])
@pytest.mark.parametrize(
    ("words", "bounds_ms"),
    [
        ([], (6_000, 1_800_000)),
        (["--group-min-session-timeout", "500ms"], (500, 1_800_000)),
        (["--group-min-session-timeout-ms=1", "--group-max-session-timeout-ms=9000"], (1, 9_000)),
    ],
)
def test_the_bounds_of_session_timeouts_are_flags(command, words, bounds_ms):
    module = dev if command is dev.dev else serve
    needed = [] if command is dev.dev else ["--zookeeper", "z:1"]
    groups = module.config_of(module.settings_of(flags_of(command, [*needed, *words]))).groups
    assert (groups.session_timeout_ms_min, groups.session_timeout_ms_max) == bounds_ms


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["--session", "6000"], 78, "gateway: --session 6000: 6000 has no unit; write 6000s,"),
        (["--session-ms", "6x"], 78, "gateway: --session-ms 6x: must be a duration in ms, s, m"),
        (["--session-ms", "1", "--session", "1s"], 2, "gateway: --session-ms is an old name of"),
    ],
)
def test_a_duration_that_cannot_be_read_is_named_as_typed(words, code, line):
    ended_with, out, err = ended("--zookeeper", "z:1", *words)
    assert (ended_with, out) == (code, "")
    assert err.startswith(line)
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--session-ms", "-5"], "--session-ms -5: must be between 200ms and 10m"),
        (["--session-ms", "1e9"], "--session-ms 1e9: must be between 200ms and 10m"),
        (["--session", "-5s"], "--session -5s: must be between 200ms and 10m"),
        (["--session", "9" * 400 + "d"], f"--session {'9' * 400}d: must be between 200ms and"),
        (["--group-initial-rebalance-delay-ms", "-1"], "--group-initial-rebalance-delay-ms -1: "),
        (["--group-min-session-timeout", "0"], "--group-min-session-timeout 0: must be between "),
        (["--group-max-session-timeout-ms", "1e10"], "--group-max-session-timeout-ms 1e10: must"),
        (
            ["--group-min-session-timeout", "10s", "--group-max-session-timeout-ms", "9000"],
            "--group-min-session-timeout 10s: must be at most --group-max-session-timeout 9s",
        ),
    ],
)
def test_a_duration_out_of_range_ends_with_78_and_is_named_as_typed(words, line):
    code, out, err = ended("--zookeeper", "z:1", *words)
    assert (code, out) == (78, "")
    assert err.startswith(f"gateway: {line}")
    assert err.count("\n") == 1


@pytest.mark.proof
def test_workers_without_zookeeper_end_as_one_gateway_would():
    nobody = f"127.0.0.1:{free_port()}"
    words = ("--zookeeper", nobody, "--session-ms", "400", "--workers", "2", "--port", "0")
    code, _, err = ended(*words)
    assert code == 69
    assert nobody in err


def test_without_zookeeper_the_flag_is_asked_for():
    assert ended() == (
        *(78, ""),
        "gateway: --zookeeper is missing (ZooKeeper servers); pass it, or set GATEWAY_ZOOKEEPER\n",
    )


def test_a_zookeeper_that_is_not_there_is_named():
    nobody = f"127.0.0.1:{free_port()}"
    code, _, err = ended("--zookeeper", nobody, "--session-ms", "400")
    assert code == 69
    last = err.splitlines()[-1]
    assert re.fullmatch(
        rf"gateway: --zookeeper {nobody}: no ZooKeeper within .* s \(.*Connection refused\);"
        r" start ZooKeeper, or name servers of it that run",
        last,
    ), last
    assert "Traceback" not in err


def test_a_cluster_without_bookies_is_told_from_one_that_does_not_answer(
    zookeeper: ZooKeeper,
):
    code, _, err = ended("--zookeeper", zookeeper.servers + zookeeper.unused_chroot())
    assert code == 69
    assert "bookie serve" in err
    assert "Traceback" not in err


def test_a_gateway_that_finds_no_bookie_up_says_so_and_serves(zookeeper: ZooKeeper, tmp_path):
    chroot = laid_out(zookeeper)
    with ClusterGateway(tmp_path / "gateway", zookeeper.servers + chroot) as gateway:
        said = [line for line in gateway.process.output().splitlines() if "no bookie" in line]
    (line,) = said
    assert "0 of 0 bookies take writes" in line
    assert chroot in line
