"""Goal: every test carries the marks of what it needs, and fails if it needs more.

Method: all that this run collected; then small files with one need each.
"""

import textwrap

import pytest

from tests import marks

FILES = {
    "needs_nothing": ("def test_one(): assert 2 == 1 + 1", {"unit"}),
    "sim": ("async def test_one(): pass", {"sim"}),
    "real_loop": (
        """
        import pytest

        @pytest.mark.real_loop
        async def test_one(): pass
        """,
        {"unit"},
    ),
    "sim_by_hand": (
        """
        from tests.sim.loop import simulate

        async def main(): pass

        def test_one(): simulate(main())
        """,
        {"sim"},
    ),
    "process_by_class": (
        """
        from tests.peers.bookie import BookieProcess

        class Started:
            def __enter__(self): return BookieProcess()

        def test_one():
            with Started(): pass
        """,
        {"process"},
    ),
    "process_by_fixture": (
        """
        import pytest, subprocess

        @pytest.fixture
        def child(): return subprocess.Popen(["true"])

        def test_one(child): pass
        """,
        {"process"},
    ),
    "process_inside": (
        """
        def test_one():
            import subprocess
            subprocess.run(["true"])
        """,
        {"process"},
    ),
    "zookeeper_by_name": (
        """
        import pytest

        @pytest.fixture(params=["a"])
        def store(request): return request.getfixturevalue("zookeeper")

        def test_one(store): pass
        """,
        {"process", "zookeeper"},
    ),
    "proof": (
        """
        import pytest

        @pytest.mark.proof
        def test_one(): pass
        """,
        {"proof", "unit"},
    ),
}


def test_every_collected_test_says_what_it_needs(request):
    for item in request.session.items:
        kinds = {mark.name for mark in item.iter_markers()} & marks.KINDS
        assert kinds - {"proof"}, item.nodeid
        assert not (kinds & marks.SERVERS and "unit" in kinds), item.nodeid


@pytest.mark.parametrize("name", FILES)
def test_a_test_is_marked_by_what_its_code_reaches(pytester, name):
    source, expected = FILES[name]
    (item,) = collected(pytester, source)
    assert {mark.name for mark in item.iter_markers()} & marks.KINDS == expected


HIDDEN = """
    import os
    import pytest

    run = getattr(os, "sys" + "tem"), getattr(os, "posix_" + "spawn")

    def test_starts_one():
        os.waitpid(run[1]("/bin/true", ["true"], {}), 0)

    @pytest.fixture(scope="module")
    def child():
        os.waitpid(run[1]("/bin/true", ["true"], {}), 0)

    def test_has_one_started(child):
        pass

    def test_has_one_too(child):
        pass

    @pytest.mark.process
    def test_says_so(child):
        pass

    def test_starts_none():
        pass
"""


@pytest.mark.process
def test_a_test_that_starts_a_process_without_saying_so_fails(pytester):
    pytester.makepyfile(HIDDEN)
    done = pytester.runpytest_inprocess(*OPTIONS)
    assert done.parseoutcomes() == {"failed": 3, "passed": 2}
    assert done.stdout.str().count("give it the mark `process`") >= 3


OPTIONS = ("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "tests.marks")


def collected(pytester, source):
    """Collect a file as one of `tests`: only the code of these is read."""
    pytester.makepyfile('__name__ = "tests.made"\n' + textwrap.dedent(source))
    items, _ = pytester.inline_genitems(*OPTIONS)
    return items
