"""What a server takes of the machine, as the kernel counts it."""

from __future__ import annotations

import os
import re
from pathlib import Path


def peak_mib(pid: int) -> float:
    """The most memory that the process ever had at a time."""
    return _status_mib(pid, "VmHWM")


def resident_mib(pid: int) -> float:
    return _status_mib(pid, "VmRSS")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _status_mib(pid: int, name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found, f"the kernel does not tell {name}"
    return int(found[1]) / 1024
