"""Reading what a plan names, without the server: for Spark's executors and other programs that have the objects.

plan = json.loads(answer_of("/ds/agents/streams/plan?after=..."))
for part in plan["ranges"]:
    if part["kind"] != "hot":                       # those are read through `messages`
        rows, selection = rows_of_range(store, plan, part)
        batch = record_batch(rows, selection, int(plan["incarnation"], 16))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ports import ObjectStore
from ..segments.block import decode_block
from .chunk import Chunk, ChunkStream
from .rows import Rows, Selection, rows_of_block, rows_of_chunk


def rows_of_range(store: ObjectStore, plan: Mapping[str, Any], part: Mapping[str, Any]) -> tuple[Rows, Selection]:
    """The rows of a `segment` or `archive` range of a plan's JSON, and which of them are wanted."""
    data = store.get_range(part["object"], part["at"], part["size"])
    selection = Selection(part["after"], part["until"], plan["prefix"])
    if part["kind"] == "archive":
        gone = {stream["number"]: stream["earliest"] for stream in plan["gone"]}
        return rows_of_chunk(Chunk(data)), selection._replace(gone=gone)
    named = next(stream for stream in plan["streams"] if stream["number"] == part["stream"])
    stream = ChunkStream(named["number"], named["stream"], named["content_type"])
    return rows_of_block(decode_block(data, stream.number), plan["bucket_id"], stream), selection._replace(
        first_offset=part["first_offset"]
    )
