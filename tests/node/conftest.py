"""Tests of the node may be coroutines: each runs on an event loop of its own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

pytest.register_assert_rewrite("tests.node.rig")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.function(**arguments))
    return True


@pytest.fixture
def once_strange(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Has a shell script start in place of the next process. The list that it gives is empty once that has happened."""

    def once(script: str) -> list[str]:
        spawn, scripts = asyncio.create_subprocess_exec, [script]

        async def start(*command: Any, **more: Any) -> asyncio.subprocess.Process:
            return await spawn(*(("sh", "-c", scripts.pop()) if scripts else command), **more)

        monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
        return scripts

    return once
