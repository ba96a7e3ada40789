"""What operators and their tools ask for: health, readiness, metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from .. import __version__
from ..protocol.s3p.commands import COMMAND_NAMES

if TYPE_CHECKING:
    from .http_listener import HttpListener
    from .s3p_listener import S3pListener

METRICS_TYPE = b"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"


class Metrics:
    """Collected when asked for: serving a request costs one addition."""

    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _collect_s3p(self, s3p: S3pListener) -> Iterator[Metric]:
        begun = CounterMetricFamily("millstream_s3p_commands", "Commands that were begun.", labels=["command"])
        for kind, count in list(s3p.commands.items()):
            begun.add_metric([COMMAND_NAMES[kind]], count)
        yield begun
        errors = CounterMetricFamily("millstream_s3p_errors", "Connections that ended with an error.", labels=["code"])
        for code, count in list(s3p.errors.items()):
            errors.add_metric([code], count)
        yield errors
        yield GaugeMetricFamily("millstream_s3p_connections", "Open connections.", s3p.connection_count)
        yield GaugeMetricFamily("millstream_s3p_inflight_bytes", "Unfinished commands in memory.", s3p.inflight_bytes)

    def collect(self) -> Iterator[Metric]:
        listener = self._listener
        requests = CounterMetricFamily("millstream_http_requests", "Answered requests.", labels=["method", "status"])
        for (method, status), count in list(listener.answered.items()):
            requests.add_metric([method.decode("latin-1"), str(status)], count)
        yield requests
        info = GaugeMetricFamily("millstream_info", "Which server this is.", labels=["version", "node_id"])
        info.add_metric([__version__, listener.settings.node_id], 1)
        yield info
        yield GaugeMetricFamily("millstream_http_connections", "Open connections.", listener.connection_count)
        yield GaugeMetricFamily("millstream_http_inflight_bytes", "Request bodies in memory.", listener.inflight_bytes)
        if listener.s3p is not None:
            yield from self._collect_s3p(listener.s3p)
        node = listener.node
        yield GaugeMetricFamily("millstream_ready", "1 when reads and writes are served.", int(listener.is_ready()))
        if node is None:
            return
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        if listener.kept_reads is not None:
            yield counter("millstream_read_cache_hits", "Reads answered by the cache.", listener.kept_reads.hits)
            yield gauge("millstream_read_cache_bytes", "Answers in the cache.", listener.kept_reads.bytes)
        yield gauge("millstream_live_readers", "Long-polls, SSE connections, blocked S3P reads.", node.followers.count)
        yield gauge(
            "millstream_feed_readers", "Long-polls and SSE connections on buckets.", node.recent.followers.count
        )
        yield gauge("millstream_read_leases", "Leases of read plans.", node.leases.count)
        yield counter("millstream_journal_commits", "Group commits.", node.writer.commits)
        yield gauge("millstream_journal_sequence", "Last committed fact.", node.writer.committed_sequence)
        yield gauge("millstream_catalog_sequence", "Last checkpointed fact.", node.upkeep.applied)
        yield gauge("millstream_hot_bytes", "Payload in memory.", node.machine.held_bytes)
        yield gauge("millstream_hot_streams", "Streams in memory.", len(node.machine.streams))
        yield counter("millstream_checkpoints", "Checkpoints.", node.upkeep.checkpoints)
        yield counter("millstream_merges", "Segment merges.", node.upkeep.merges)
        yield gauge("millstream_damaged_places", "Blocks and chunks found damaged.", node.damage.count)
        yield counter("millstream_upkeep_failures", "Deaths of the upkeep process.", node.upkeep.failures)
        yield counter("millstream_expired", "Streams swept after their time was up.", node.sweeper.expired)
        yield counter("millstream_retention_trims", "Streams trimmed by retention.", node.retention.trimmed)
        transactions = node.transactions
        yield counter("millstream_transactions", "Transactions committed.", transactions.commits)
        yield gauge("millstream_staged_parts", "Parts that wait for their commit.", len(transactions.parts))
        yield gauge("millstream_staged_bytes", "Bytes of staged messages.", transactions.parts.bytes)
        yield gauge("millstream_recovered_facts", "Facts replayed at the last start.", node.replayed)
        yield gauge("millstream_recovery_seconds", "Time the last replay took.", node.recovery_s)
        count, size, live = node.catalog.segment_bytes()
        yield gauge("millstream_segments", "Segments.", count)
        yield gauge("millstream_segment_bytes", "Bytes of all segments.", size)
        yield gauge("millstream_segment_live_bytes", "Bytes of messages in use.", live)
        count, size = node.catalog.archives.totals()
        yield gauge("millstream_archives", "Archive objects.", count)
        yield gauge("millstream_archive_bytes", "Bytes of the archive.", size)
