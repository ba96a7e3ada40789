"""What the exit code of a command says. docs/cli.md has the same table, and a test compares the two."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Scripts rely on these: a meaning once given is kept."""

    DONE = 0
    WRONG = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    CONFLICT = 5
    GONE = 6
    UNAUTHORIZED = 7
    NOT_SUPPORTED = 8
    OUTCOME_UNKNOWN = 9
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141
    TERMINATED = 143


MEANINGS = {
    Exit.DONE: "done",
    Exit.WRONG: "the command ran and found something wrong, or you answered no",
    Exit.USAGE: "what was asked cannot be done: an option, a name, an offset, a file; or an unexpected error",
    Exit.UNREACHABLE: "the server cannot be reached, or kept saying that it cannot serve now",
    Exit.NOT_FOUND: "there is no such bucket, stream or snapshot",
    Exit.CONFLICT: "the state there says no: it exists, is closed, is not empty, or is not as `--if-match` says",
    Exit.GONE: "it was there and is not any more: trimmed history, or another stream under the same name",
    Exit.UNAUTHORIZED: "credentials are missing, stale or not enough",
    Exit.NOT_SUPPORTED: "the server lacks the extension that this command needs, or speaks something else",
    Exit.OUTCOME_UNKNOWN: "a write may or may not have happened, as its answer got lost; read before you repeat it",
    Exit.INTERRUPTED: "interrupted by Ctrl-C; a line on stderr says what had been done by then",
    Exit.OUTPUT_CLOSED: "whoever read the output went away, such as `head`",
    Exit.TERMINATED: "ended by SIGTERM, in the same way as by Ctrl-C",
}
