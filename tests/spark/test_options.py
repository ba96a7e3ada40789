"""Options: wrong names and values fail at once, with the option's name and what is allowed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millstream.spark import options as o
from millstream.spark.errors import BadOption
from millstream.spark.options import (
    Bound,
    Selection,
    batch_read_options,
    batch_write_options,
    refuse_nonsense,
    stream_read_options,
    stream_write_options,
)

WHERE = {"url": "http://127.0.0.1:4437", "bucket": "agents"}
POSITION = "1b2c3d4e5f607182.42"


def test_what_is_absent_has_its_default():
    options = batch_read_options(WHERE)
    assert (options.server.url, options.server.bucket, options.server.token) == (WHERE["url"], "agents", None)
    assert (options.start.word, options.end.word) == ("earliest", "latest")
    assert (options.min_partitions, options.bytes_per_partition) == (1, 64 << 20)
    assert (options.include_snapshots, options.fail_on_data_loss, options.tier) == (False, True, "auto")
    assert stream_read_options(WHERE).start.word == "latest"
    written = batch_write_options(WHERE)
    assert (written.stream, written.create_streams, written.content_type, written.order_by) == (None, False, None, None)


def test_names_are_taken_in_any_case():
    given = {"URL": WHERE["url"], "Bucket": "agents", "MAXBYTESPERPARTITION": "2MiB", "ReadTier": "HTTP"}
    options = batch_read_options(given)
    assert (options.bytes_per_partition, options.tier) == (2 << 20, "http")


def test_starting_from_a_snapshot_includes_snapshots():
    assert batch_read_options({**WHERE, "startingOffsets": "snapshot"}).include_snapshots
    assert not batch_read_options(
        {**WHERE, "startingOffsets": "snapshot", "includeSnapshots": "false"}
    ).include_snapshots


def test_bounds_are_words_positions_offsets_or_times():
    def start(text: str) -> Bound:
        return batch_read_options({**WHERE, "startingOffsets": text}).start

    assert start(POSITION) == Bound("position", position=POSITION)
    assert start('{"a": 12, "b/c": "00000000000000000007"}') == Bound("offsets", offsets={"a": 12, "b/c": 7})
    timed = batch_read_options(
        {**WHERE, "startingTimestamp": "2026-11-15T05:30:00Z", "endingTimestamp": "1794721460000"}
    )
    assert (timed.start.at_ms, timed.end.at_ms) == (1_794_720_600_000, 1_794_721_460_000)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"urls": "x"}, "There is no option urls. Did you mean url?"),
        ({"colour": "red"}, "There is no option colour. Allowed are: url, bucket, token, subscribe"),
        ({"path": "/data"}, "The option path has no meaning here: name the bucket in the option bucket"),
        ({"url": "127.0.0.1:4437"}, "The option url is '127.0.0.1:4437'. Allowed is the URL of a server"),
        ({"bucket": " "}, "The option bucket is ' '."),
        ({"readTier": "warp"}, "The option readTier is 'warp'. Allowed is auto, http or direct."),
        ({"failOnDataLoss": "maybe"}, "The option failOnDataLoss is 'maybe'. Allowed is true or false."),
        ({"includeSnapshots": "1"}, "The option includeSnapshots is '1'. Allowed is true or false."),
        ({"minPartitions": "0"}, "The option minPartitions is '0'. Allowed is a whole number from 1 on."),
        ({"minPartitions": "-3"}, "The option minPartitions is '-3'."),
        ({"maxBytesPerPartition": "much"}, "The option maxBytesPerPartition is 'much'. Allowed is a number of bytes"),
        ({"subscribe": " , "}, "The option subscribe is ' , '. Allowed is a list of stream names"),
        ({"subscribePattern": "a("}, "The option subscribePattern is 'a('. Allowed is a regular expression"),
        ({"subscribe": "a", "prefix": "b"}, "The options subscribe and prefix exclude each other."),
        ({"startingOffsets": "first"}, "The option startingOffsets is 'first'. Allowed is earliest, latest, snapshot"),
        ({"startingOffsets": "[1]"}, "The option startingOffsets is '[1]'. Allowed is"),
        ({"startingOffsets": '{"a": -1}'}, "the offset of 'a' is not a number from 0 on"),
        ({"startingOffsets": '{"a": true}'}, "the offset of 'a' is not a number from 0 on"),
        ({"startingOffsets": "latest"}, "leaves nothing to read in a batch"),
        ({"endingOffsets": "earliest"}, "The option endingOffsets is 'earliest'. Allowed is latest, snapshot"),
        ({"startingTimestamp": "yesterday"}, "The option startingTimestamp is 'yesterday'. Allowed is milliseconds"),
        ({"startingTimestamp": "1", "startingOffsets": "earliest"}, "exclude each other"),
        ({"endingTimestamp": "1", "endingOffsets": "latest"}, "exclude each other"),
        ({"maxBytesPerTrigger": "1m"}, "The option maxBytesPerTrigger is for spark.readStream only"),
        ({"createStreams": "true"}, "The option createStreams is for writing, not for reading."),
    ],
)
def test_a_batch_read_refuses(given, said):
    with pytest.raises(BadOption, match=re.escape(said)):
        batch_read_options({**WHERE, **given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"endingOffsets": "latest"}, "The option endingOffsets is for spark.read only"),
        ({"endingTimestamp": "5"}, "The option endingTimestamp is for spark.read only"),
        ({"maxBytesPerTrigger": "0"}, "The option maxBytesPerTrigger is '0'."),
        ({"maxOffsetsPerTrigger": "many"}, "The option maxOffsetsPerTrigger is 'many'. Allowed is a whole number"),
    ],
)
def test_a_stream_refuses(given, said):
    with pytest.raises(BadOption, match=re.escape(said)):
        stream_read_options({**WHERE, **given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"txnAppId": "etl"}, "The option txnAppId needs txnVersion beside it"),
        ({"txnVersion": "1"}, "The option txnVersion needs txnAppId beside it"),
        ({"txnAppId": "a b", "txnVersion": "1"}, "The option txnAppId is 'a b'. Allowed is 1 to 128 characters"),
        (
            {"txnAppId": "etl", "txnVersion": "-1"},
            "The option txnVersion is '-1'. Allowed is a whole number",
        ),
        ({"createStreams": "yes"}, "The option createStreams is 'yes'. Allowed is true or false."),
        ({"readTier": "http"}, "The option readTier is for reading, not for writing."),
        ({"orderby_": "x"}, "There is no option orderby_. Did you mean orderBy?"),
    ],
)
def test_a_batch_write_refuses(given, said):
    with pytest.raises(BadOption, match=re.escape(said)):
        batch_write_options({**WHERE, **given})


def test_a_streaming_write_takes_sparks_checkpoint_but_no_version():
    assert stream_write_options({**WHERE, "checkpointLocation": "x", "txnAppId": "etl"}).app == "etl"
    with pytest.raises(BadOption, match="in a streaming query it is the id of the micro-batch"):
        stream_write_options({**WHERE, "txnAppId": "etl", "txnVersion": "1"})


@pytest.mark.parametrize("missing", ["url", "bucket"])
def test_what_is_needed_is_missed(missing):
    given = {name: value for name, value in WHERE.items() if name != missing}
    for parse in (batch_read_options, stream_read_options, batch_write_options, stream_write_options):
        with pytest.raises(BadOption, match=f"The option {missing} is missing. It looks like"):
            parse(given)


def test_wrong_names_and_values_fail_before_the_use_is_known():
    refuse_nonsense({**WHERE, "endingOffsets": "latest", "createStreams": "true"})
    with pytest.raises(BadOption, match=r"There is no option bukket\. Did you mean bucket\?"):
        refuse_nonsense({**WHERE, "bukket": "x"})
    with pytest.raises(BadOption, match=r"The option startingOffsets is 'earlyest'\. Allowed is earliest"):
        refuse_nonsense({"startingOffsets": "earlyest"})


def test_a_token_is_shown_nowhere():
    options = batch_read_options({**WHERE, "token": "secret"})
    assert options.server.token == "secret"
    assert "secret" not in repr(options)


def test_a_selection_takes_what_it_names():
    assert Selection(names=("a", "b")).takes("a")
    assert not Selection(names=("a", "b")).takes("ab")
    assert Selection(pattern="run-[0-9]+").takes("run-12")
    assert not Selection(pattern="run-[0-9]+").takes("run-12-a")
    assert Selection(prefix="user-").takes("user-1")
    assert Selection(names=("only",)).server_prefix == "only"
    assert not Selection(names=("only",)).is_everything


def test_every_option_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    missing = [name for name in o.EVERY if f"| `{name}` |" not in text]
    assert not missing, f"docs/spark.md has no row for {', '.join(missing)}"
