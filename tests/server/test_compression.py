"""Which coding a client gets (RFC 9110, section 12.5.3)."""

from __future__ import annotations

import pytest

from millstream.server.compression import wanted_encoding


@pytest.mark.parametrize(
    ("accepted", "wanted"),
    [
        (b"gzip, zstd", b"zstd"),
        (b"gzip;q=0.5, zstd;q=0.1", b"gzip"),
        (b"gzip;q=0.5, zstd;q=0.5", b"zstd"),
        (b"gzip ; Q=1.000 ,zstd; q=0.999", b"gzip"),
        (b"gzip;q=0, zstd;q=0.000", None),
        (b"gzip;q=0.001", b"gzip"),
        (b"identity, gzip;q=0.5", None),
        (b"identity;q=0.5, gzip", b"gzip"),
        (b"identity, gzip", b"gzip"),
        (b"gzip;q=much", None),
        (b"br, deflate", None),
        (b"", None),
        (b"gzip;q=0.5," * 100, b"gzip"),
    ],
)
def test_the_weights_decide(accepted: bytes, wanted: bytes | None) -> None:
    assert wanted_encoding(accepted) == wanted
