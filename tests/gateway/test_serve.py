"""Goal: `gateway serve` says what is wrong with its flags and with what it needs, and exits so.

Method: the command as users run it; what it does once it serves is in tests/cluster/.
"""

import subprocess
import sys

from tests.peers.processes import free_port
from tests.peers.zookeeper import ZooKeeper


def ended(*words, timeout_s=60):
    argv = [sys.executable, "-m", "gateway", "serve", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s)
    return done.returncode, done.stdout, done.stderr


def test_every_fault_of_the_flags_is_listed(tmp_path):
    open_key = tmp_path / "key.pem"
    open_key.write_text("")
    open_key.chmod(0o644)
    code, out, err = ended(
        *("--zookeeper", "here", "--port", "70000", "--session-ms", "1"),
        *("--replication-factor", "0", "--bookie-tls-key", str(open_key)),
    )
    assert (code, out) == (78, "")
    assert [line.removeprefix("gateway: ").split()[0].rstrip(":") for line in err.splitlines()] == [
        "port",
        "zookeeper",
        "session-ms",
        "replication-factor",
        "bookie-tls-cert",
        "bookie-tls-ca",
        "bookie-tls-key",
    ]


def test_without_zookeeper_the_flag_is_asked_for():
    code, _, err = ended()
    assert code == 2
    assert "--zookeeper" in err


def test_a_zookeeper_that_is_not_there_is_named():
    nobody = f"127.0.0.1:{free_port()}"
    code, _, err = ended("--zookeeper", nobody, "--session-ms", "400")
    assert code == 69
    assert nobody in err
    assert "Traceback" not in err


def test_a_cluster_without_bookies_is_told_from_one_that_does_not_answer(
    zookeeper: ZooKeeper,
):
    code, _, err = ended("--zookeeper", zookeeper.servers + zookeeper.unused_chroot())
    assert code == 69
    assert "bookie serve" in err
    assert "Traceback" not in err
