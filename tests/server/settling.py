"""Waiting until a server has written down what it was told."""

import time


def metrics(client):
    lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith("millstream_")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def wait_for(client, condition, what):
    give_up = time.monotonic() + 20
    while not condition(metrics(client)):
        assert time.monotonic() < give_up, what
        time.sleep(0.02)


def settle(client, archived=True):
    """Wait until everything is in segments and in the archive; or nothing, where none is kept."""
    wait_for(
        client,
        lambda now: (
            now["millstream_catalog_sequence"] == now["millstream_journal_sequence"]
            and (archived or now["millstream_archives"] == 0)
        ),
        "there was no checkpoint",
    )
