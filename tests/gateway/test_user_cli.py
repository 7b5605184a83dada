"""Goal: `gateway user` refuses names and passwords that no login could use, and names the fix.

Method: the commands in this process; the places to which they would connect do not exist, except
one ZooKeeper without a cluster.
"""

import pytest

from tests.gateway.admin_commands import invoke
from tests.peers.zookeeper import ZooKeeper

BOOTSTRAP = ("bootstrap", "root", "--password", "env:PASSWORD", "--zookeeper")


@pytest.mark.parametrize(
    ("words", "password", "code", "text"),
    [
        (("add", "", "--password", "env:PASSWORD"), "p", 2, "must have 1 to 1024 bytes"),
        (("add", "jürgen", "--password", "env:PASSWORD"), "p", 2, "must be of printable ASCII"),
        (("add", "a\x1b[31m", "--password", "env:PASSWORD"), "p", 2, "must be of printable ASCII"),
        (("add", "ann", "--password", "env:PASSWORD"), "p" * 1025, 78, "at most 1024 bytes"),
        (("add", "ann", "--password", "p"), "p", 2, "must be file:PATH or env:NAME"),
        ((*BOOTSTRAP, ""), "p", 2, "must be host:port"),
        ((*BOOTSTRAP, "zk:port"), "p", 2, "must be host:port"),
        ((*BOOTSTRAP, "zk:2181/../other"), "p", 2, "must be host:port"),
        ((*BOOTSTRAP, "grpc://127.0.0.1:3181"), "p", 2, "of a cluster"),
    ],
)
def test_what_no_login_could_use_is_refused_in_one_line(monkeypatch, words, password, code, text):
    monkeypatch.setenv("PASSWORD", password)
    found, out, errors = invoke("user", *words)
    assert (found, out, errors.count("\n")) == (code, "", 1)
    assert text in errors


def test_a_password_with_a_nul_character_is_refused(tmp_path):
    file = tmp_path / "password"
    file.write_bytes(b"a\0b\n")
    file.chmod(0o600)
    code, _, errors = invoke("user", "add", "ann", "--password", f"file:{file}")
    assert (code, errors.count("\n")) == (78, 1)
    assert "no NUL character" in errors


@pytest.mark.real_loop
def test_a_first_user_below_a_missing_chroot_is_told_of_the_chroot(tmp_path, monkeypatch):
    """ZooKeeper runs, so that starting it would be the wrong fix."""
    monkeypatch.setenv("PASSWORD", "p")
    with ZooKeeper(tmp_path / "zookeeper") as server:
        place = f"{server.servers}/typo"
        code, out, errors = invoke("user", *BOOTSTRAP, place)
    assert (code, out) == (69, "")
    assert errors == (
        f"gateway: --zookeeper {place}: the chroot /typo does not exist; correct it, or start"
        " `bookie serve` first, with this --zookeeper\n"
    )
