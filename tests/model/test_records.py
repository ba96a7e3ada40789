"""Leases: when a stream's time is up, and how often a renewal is worth a line in the journal."""

from __future__ import annotations

from millstream.model.records import Lease


def test_a_ttl_counts_from_the_last_renewal():
    assert Lease(ttl_s=60, expires_at_ms=None, renewed_ms=5_000).deadline_ms() == 65_000


def test_an_expiry_is_a_fixed_end():
    assert Lease(ttl_s=None, expires_at_ms=9_000, renewed_ms=5_000).deadline_ms() == 9_000


def test_renewals_are_journaled_once_in_a_tenth_of_the_ttl():
    assert Lease(ttl_s=3600, expires_at_ms=None, renewed_ms=0).thinning_ms() == 360_000


def test_but_not_more_than_once_a_second():
    assert Lease(ttl_s=1, expires_at_ms=None, renewed_ms=0).thinning_ms() == 1000
    assert Lease(ttl_s=0, expires_at_ms=None, renewed_ms=0).thinning_ms() == 1000
    assert Lease(ttl_s=None, expires_at_ms=9_000, renewed_ms=0).thinning_ms() == 1000
