"""Descriptors: connections take what the files leave, never the other way round.

Whoever opens many idle connections must not keep the journal from its next file. So the limits of connections are cut
at start to what the process may have, and whoever is above them is sent away.
"""

from __future__ import annotations

import logging
import resource
from dataclasses import replace

from .settings import Settings

log = logging.getLogger(__name__)

TOLD_MAX = 16  # connections above a limit that are told so; the others are closed at once
_OURS = 80  # journal, catalog, helpers, listeners, reads in threads, and those who are told
_FILES_PART = 8  # of all descriptors: objects that stay open (see `LocalObjects`), bodies and snapshots on their way
_FILES_MAX = 512
_FEW = 4096  # connections: an operator should know that there are no more


def fit_connections(settings: Settings) -> Settings:
    """The settings with as many connections as there is room for; the log says what was cut."""
    limit = _raise_limit()
    room = max(limit - _OURS - min(limit // _FILES_PART, _FILES_MAX), 2)
    s3p = 0 if settings.s3p_address is None else settings.s3p_connections_max
    wanted = settings.connections_max + s3p
    if wanted <= room:
        return settings
    fitting = max(room * settings.connections_max // wanted, 1)
    cut = replace(settings, connections_max=fitting, s3p_connections_max=max(room - fitting, 1))
    said = f"connections_max is {fitting} instead of {settings.connections_max}"
    if s3p:
        said += f", s3p.connections_max {cut.s3p_connections_max} instead of {s3p}"
    log.log(
        logging.WARNING if room < _FEW else logging.INFO,
        "The process may open %d files, which leaves room for %d connections: %s. "
        "Raise the limit (ulimit -n, LimitNOFILE), or lower the settings.",
        limit,
        room,
        said,
    )
    return cut


def _raise_limit() -> int:
    """Take all that the process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 30
