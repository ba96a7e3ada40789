"""Who may talk to a server that asks for no credentials: loopback names and loopback pages, unless opened.

A web page anywhere can make a browser send requests to a server on the same machine. The Origin check stops those; the
Host check stops pages that point a name of their own at 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

import ipaddress

from ..protocol.http import headers as h
from .settings import Settings

_KNOWN_MAX = 1024


class Guard:
    def __init__(self, settings: Settings) -> None:
        self._any_host = settings.insecure
        self._hosts = {host.lower() for host in settings.allowed_hosts} | {settings.address.host.lower()}
        self._origins = {origin.lower().rstrip("/") for origin in settings.cors_origins}
        self._known_hosts: set[bytes] = set()  # passed the check before; bounded, as clients choose them
        self._known_origins: set[tuple[bytes, bytes]] = set()
        self.resource_policy = b"cross-origin" if self._origins else b"same-origin"

    def knows(self, headers: dict[bytes, bytes]) -> bool:
        """Whether a request is welcome without a closer look: no page sent it, and its Host passed the check before."""
        return h.ORIGIN not in headers and headers.get(h.HOST) in self._known_hosts

    def allows_host(self, host: bytes) -> bool:
        if host in self._known_hosts:
            return True
        allowed = self._any_host or self._is_own(_without_port(host))
        if allowed and len(self._known_hosts) < _KNOWN_MAX:
            self._known_hosts.add(host)
        return allowed

    def allows_origin(self, origin: bytes, host: bytes) -> bool:
        if (origin, host) in self._known_origins:
            return True
        text = origin.decode("latin-1").lower()
        scheme, separator, authority = text.partition("://")
        allowed = (
            "*" in self._origins
            or text in self._origins
            or (bool(separator) and scheme in ("http", "https") and self._is_near(authority, host))
        )
        if allowed and len(self._known_origins) < _KNOWN_MAX:
            self._known_origins.add((origin, host))
        return allowed

    def _is_near(self, authority: str, host: bytes) -> bool:
        return is_loopback(_without_port(authority.encode("latin-1"))) or authority == host.decode("latin-1").lower()

    def _is_own(self, name: str) -> bool:
        return is_loopback(name) or name in self._hosts


def is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _without_port(host: bytes) -> str:
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text[: text.find("]") + 1]
    return text.partition(":")[0]
