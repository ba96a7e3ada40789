"""Property tests here take microseconds; a deadline would only measure what else the machine is doing."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
