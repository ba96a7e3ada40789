"""`millstream bucket`: create, show, change and delete buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from millstream.cli.connection import DEFAULT_URL, JsonOption, UrlOption, YesOption, confirm, connected
from millstream.cli.output import CommandError, count_text, print_done, print_fields, print_json, size_text, time_text
from millstream.server.setting_kinds import parse_size

if TYPE_CHECKING:
    from millstream.client import BucketInfo

app = typer.Typer(help="Buckets: groups of streams with settings.", rich_markup_mode=None)

BucketArgument = Annotated[str, typer.Argument(metavar="BUCKET", help="The bucket's name.")]
TypeOption = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Content type of streams without one.")]
TtlOption = Annotated[str | None, typer.Option("--ttl", metavar="SECONDS", help="Lifetime of streams without one.")]
AgeOption = Annotated[
    str | None, typer.Option("--retention-seconds", metavar="SECONDS", help="Messages older than this may go.")
]
SizeOption = Annotated[
    str | None, typer.Option("--retention-bytes", metavar="SIZE", help="A stream may lose what it holds beyond this.")
]
CachingOption = Annotated[
    str | None, typer.Option("--caching", metavar="public|private", help="What reads tell caches.")
]

NONE = "none"  # takes a setting back


@app.command(epilog="Example: millstream bucket create chat --type application/json")
def create(
    name: BucketArgument,
    content_type: TypeOption = None,
    ttl: TtlOption = None,
    retention_seconds: AgeOption = None,
    retention_bytes: SizeOption = None,
    caching: CachingOption = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Create a bucket. The settings are defaults of its streams; SECONDS are whole numbers, SIZE is such as 1GiB."""
    settings = chosen(content_type, ttl, retention_seconds, retention_bytes, caching)
    with connected(url) as link:
        with link.interrupts.held():
            link.bucket(name).create(**settings)
        report({"bucket": name, "created": True}, as_json, name, "created")
        link.interrupts.check()


@app.command(epilog="Example: millstream bucket show chat")
def show(name: BucketArgument, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Show a bucket: how many streams it has, and its settings."""
    with connected(url) as link:
        found = link.bucket(name).get()
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        print_fields(fields(found))


def fields(found: BucketInfo) -> dict[str, str]:
    shown = {
        "bucket": found.bucket_id,
        "streams": f"{found.streams:,}",
        "created": time_text(found.created_at_ms) or "unknown",
    }
    for name, value in found.settings.items():
        if value is not None:
            shown[name.replace("_", " ")] = size_text(value) if name == "retention_bytes" else str(value)
    return shown


@app.command(epilog="Example: millstream bucket change chat --ttl 86400 --type none")
def change(
    name: BucketArgument,
    content_type: TypeOption = None,
    ttl: TtlOption = None,
    retention_seconds: AgeOption = None,
    retention_bytes: SizeOption = None,
    caching: CachingOption = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Change a bucket's settings. Those not named stay; "none" takes one back."""
    settings = chosen(content_type, ttl, retention_seconds, retention_bytes, caching)
    if not settings:
        raise CommandError("there is nothing to change; name a setting, such as --ttl 86400")
    with connected(url) as link:
        with link.interrupts.held():
            link.bucket(name).change(**settings)
        counted = count_text(len(settings), "setting", "settings")
        report({"bucket": name, "changed": settings}, as_json, f"{name} ({counted})", "changed")
        link.interrupts.check()


@app.command(epilog="Example: millstream bucket delete chat --yes")
def delete(
    name: BucketArgument, yes: YesOption = False, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False
) -> None:
    """Delete a bucket that has no streams any more."""
    with connected(url) as link:
        bucket = link.bucket(name)
        confirm(f"Delete the bucket {name}?", yes)
        with link.interrupts.held():
            bucket.delete()
        report({"bucket": name, "deleted": True}, as_json, name, "deleted")
        link.interrupts.check()


def report(outcome: dict[str, object], as_json: bool, sentence: str, mark: str) -> None:
    if as_json:
        print_json(outcome)
    else:
        print_done(sentence, mark)


def chosen(content_type: str | None, ttl: str | None, age: str | None, size: str | None, caching: str | None) -> Any:
    """The settings that were given, as the server takes them."""
    given = {
        "content_type": content_type,
        "ttl_seconds": number("--ttl", ttl, int),
        "retention_seconds": number("--retention-seconds", age, int),
        "retention_bytes": number("--retention-bytes", size, parse_size),
        "caching": caching,
    }
    return {name: None if value == NONE else value for name, value in given.items() if value is not None}


def number(option: str, text: str | None, parse: Any) -> int | str | None:
    if text is None or text == NONE:
        return text
    try:
        return int(parse(text))
    except ValueError:
        wanted = "a whole number of seconds" if parse is int else "a size such as 1GiB"
        raise CommandError(f'{option} {text} is not {wanted}; "none" takes it back') from None
