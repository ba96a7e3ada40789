"""The server process: settings in, exit code out."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import signal
import sys
import time

import uvloop

from ..model.errors import StorageError
from ..node.node import Node, NodeLimits, recover
from .descriptors import fit_connections
from .http_listener import HttpListener
from .s3p_listener import S3pListener
from .setting_kinds import Address
from .settings import Settings

log = logging.getLogger("millstream")


def run(settings: Settings) -> int:
    """Serve until SIGINT or SIGTERM. 0 after a clean stop, 1 when the data cannot be served."""
    _set_up_logging(settings)
    settings = fit_connections(settings)
    # Most objects here live long and form no cycles; looking for some after every 700 allocations is waste.
    gc.set_threshold(50_000, 20, 50)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings))
    except StorageError as error:
        log.critical("%s", error.message)
        return 1
    except OSError as error:
        log.critical("Cannot start: %s", error)
        return 1


async def _serve(settings: Settings) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    # A terminal that closes, or an operator who hopes for a reload, must not end the service.
    loop.add_signal_handler(signal.SIGHUP, log.info, "SIGHUP is ignored: settings are read at start only.")
    listener = HttpListener(settings)
    host, port = await listener.start()
    # The listener is up before recovery, so that health checks see a server that is on its way.
    log.info("Listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
    s3p = await _listen_s3p(settings)
    limits = NodeLimits(**{name: getattr(settings, name) for name in NodeLimits.__struct_fields__})
    node = Node(await asyncio.to_thread(recover, settings.data_dir, limits))
    node.start()
    listener.serve_node(node)
    if s3p is not None:
        s3p.serve_node(node)
        listener.s3p = s3p
    gc.freeze()
    log.info("Ready: %d facts replayed in %.2f s from %s", node.replayed, node.recovery_s, settings.data_dir)
    await stopped.wait()
    log.info("Stopping")
    await asyncio.gather(listener.stop(), *([] if s3p is None else [s3p.stop()]))
    await node.close()
    return 0


async def _listen_s3p(settings: Settings) -> S3pListener | None:
    address = settings.s3p_address
    if address is None:
        return None
    listener = S3pListener(settings)
    host, port = await listener.start(address)
    log.info("Listening for S3P on %s", Address(host, port))
    return listener


def _set_up_logging(settings: Settings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if settings.log_format == "json" else _Lines())
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)


class _Lines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-8s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
        self.converter = time.gmtime


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)
