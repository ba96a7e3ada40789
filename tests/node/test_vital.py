"""Background work does not fail in silence."""

from __future__ import annotations

import asyncio
import logging

import pytest

from millstream.node.vital import vital_task


async def test_a_failure_is_in_the_log_at_once(caplog):
    async def fails() -> None:
        raise LookupError("of all things")

    task = vital_task(fails(), "sweeping")
    with pytest.raises(LookupError):
        await task
    await asyncio.sleep(0)
    (record,) = caplog.records
    assert record.levelno == logging.CRITICAL
    assert "'sweeping'" in record.message
    assert "of all things" in caplog.text


async def test_an_end_in_order_is_not(caplog):
    async def ends() -> None:
        pass

    await vital_task(ends(), "short")
    endless = vital_task(asyncio.sleep(60), "endless")
    await asyncio.sleep(0)
    endless.cancel()
    with pytest.raises(asyncio.CancelledError):
        await endless
    await asyncio.sleep(0)
    assert caplog.records == []
