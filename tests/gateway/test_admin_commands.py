"""Goal: a command that a test runs in its own process hides nothing that its process would show.

Method: commands of these tests in place of the program: one ends with an error, one leaves a task.
"""

from __future__ import annotations

import asyncio

import click
import pytest

from tests.gateway import admin_commands
from tests.gateway.admin_commands import invoke


async def fail():
    raise RuntimeError("left alone")


async def leave_a_failed_task():
    task = asyncio.ensure_future(fail())
    await asyncio.sleep(0)
    del task
    await asyncio.sleep(0)


@click.group()
def program():
    """Stand for the program."""


@program.command()
def leaves():
    asyncio.run(leave_a_failed_task())


@program.command()
def raises():
    raise RuntimeError("a mistake of ours")


@program.command()
@click.pass_context
def refuses(ctx):
    ctx.exit(69)


@pytest.mark.parametrize("word", ["leaves", "raises"])
def test_a_command_that_leaves_a_failed_task_or_ends_by_an_exception_fails_its_test(
    word, monkeypatch
):
    monkeypatch.setattr(admin_commands, "program", program)
    with pytest.raises(AssertionError, match=r"never retrieved|a mistake of ours"):
        invoke(word)


def test_the_exit_code_is_that_of_the_command(monkeypatch):
    monkeypatch.setattr(admin_commands, "program", program)
    assert invoke("refuses")[0] == 69
