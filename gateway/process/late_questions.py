"""Answers to private requests whose modules are imported at the first one: few gateways get any."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

from gateway.handlers.api import Api, Context, Request, Result
from gateway.wire.messages import PRIVATE_KEY
from ledger.ids import Buffer


async def ask_figures(asked: Mapping[str, Any], ctx: Context) -> dict[str, Any]:
    from gateway.figures.questions import answer

    return await answer(asked, ctx)


async def ask_metrics(asked: Mapping[str, Any], ctx: Context) -> dict[str, Any]:
    from gateway.metrics.questions import answer

    return await answer(asked, ctx)


def private_questions_row() -> Api:
    """Return the row of the private request. Its handler is imported at the first one."""

    def handle(request: Request, ctx: Context) -> Coroutine[Any, Any, Result]:
        from gateway.handlers import private_questions

        return private_questions.handle(request, ctx)

    def decode(version: int, frame: Buffer, offset: int) -> dict[str, Any]:
        from gateway.wire import private_request

        return private_request.decode_body(version, frame, offset)

    return Api(
        key=PRIVATE_KEY,
        name="PrivateQuestions",
        versions=range(1),
        handle=handle,
        decode=decode,
        private=True,
    )
