"""`gateway job replay`: its options and what it prints."""

from __future__ import annotations

from gateway.admin.output import Format
from gateway.pipelines.job import Conf, Master, Output, run_job
from gateway.pipelines.model import JobError


def replay(master: Master = "", conf: Conf = None, output: Output = Format.table) -> None:
    """To be written."""

    def work(_: object) -> None:
        raise JobError("not there yet")

    run_job("replay", master, conf, output, work)
