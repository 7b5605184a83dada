"""Goal: no `async def test_...` passes without having run. Method: pytest runs small files."""

import pytest
from hypothesis import settings

SIMULATED = """
    import asyncio
    import pytest

    async def test_fails():
        await asyncio.sleep(3600)
        assert False

    class TestMethods:
        async def test_fails(self):
            assert False

    @pytest.mark.parametrize("number", [1, 2])
    async def test_fails_for_two(number):
        assert number == 2

    async def test_passes(tmp_path):
        await asyncio.sleep(3600)
        assert asyncio.get_running_loop().time() == 3600
        assert tmp_path.is_dir()
"""

REAL = """
    import asyncio
    import socket
    import pytest

    def own_loop():
        made.append(asyncio.new_event_loop())
        return made[-1]

    made = []
    pytestmark = pytest.mark.real_loop

    async def test_fails():
        await asyncio.sleep(0.001)
        assert False

    async def test_passes():
        await asyncio.to_thread(socket.gethostname)

    @pytest.mark.real_loop(loop=own_loop)
    async def test_passes_on_a_loop_of_its_own():
        assert asyncio.get_running_loop() is made[-1]
"""

GIVEN = """
    import asyncio
    from hypothesis import given, settings, strategies as st

    ran = []

    @given(st.integers(0, 1000))
    async def test_fails(number):
        await asyncio.sleep(0)
        assert number < 500

    @settings(max_examples=20)
    @given(number=st.integers(0, 10**9))
    async def test_passes(number):
        assert asyncio.get_running_loop().time() == 0
        await asyncio.sleep(1)
        ran.append(number)

    def test_every_example_ran():
        assert len(ran) >= 20
"""

FORGOTTEN = """
    async def work():
        raise AssertionError("never reached")

    async def test_forgets_to_await():
        work()

    def test_forgets_the_loop():
        work()

    async def test_returns_what_it_should_assert():
        return False

    class Later:
        def __await__(self):
            yield

    def test_returns_what_nobody_awaits():
        return Later()

    async def test_yields():
        yield
"""

HOOK = ("-p", "tests.async_tests")


def outcomes(pytester, source, *options):
    """Under the warning filters that all tests have."""
    filters = pytester._request.config.getini("filterwarnings")
    lines = [
        "[pytest]",
        "markers = real_loop",
        "filterwarnings =",
        *("  " + one for one in filters),
    ]
    pytester.makeini("\n".join(lines))
    pytester.makepyfile(source)
    words = ["-p", "no:randomly", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", *options]
    return pytester.runpytest_inprocess(*words).parseoutcomes()


@pytest.mark.parametrize(
    ("source", "passed", "failed"), [(SIMULATED, 2, 3), (REAL, 2, 1), (GIVEN, 2, 1)]
)
def test_what_a_test_asserts_decides_on_every_loop(pytester, source, passed, failed):
    assert outcomes(pytester, source, *HOOK) == {"passed": passed, "failed": failed}


def test_a_forgotten_await_and_a_coroutine_that_nobody_runs_are_errors(pytester):
    assert outcomes(pytester, FORGOTTEN, *HOOK) == {"failed": 5}


@pytest.mark.parametrize("source", [SIMULATED, REAL])
def test_without_the_hook_every_coroutine_test_fails(pytester, source):
    assert "passed" not in outcomes(pytester, source)


def test_an_example_of_hypothesis_may_take_as_long_as_a_busy_machine_needs():
    """Else a machine that stands still for a fifth of a second fails the example of that moment."""
    assert settings.default.deadline is None
