"""Settings: where they come from, who wins, and what the errors say."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.server.setting_kinds import GIB, KIB, MIB, Address, format_size, parse_address, parse_size
from millstream.server.settings import KEYS, Settings, SettingsError, load_settings


def load(toml: str | None = None, folder: Path | None = None, environ=None, **flags: object) -> Settings:
    config = None
    if toml is not None:
        assert folder is not None
        config = folder / "millstream.toml"
        config.write_text(toml)
    return load_settings(config, environ or {}, flags)


def refused(*args: object, **kwargs: object) -> str:
    with pytest.raises(SettingsError) as caught:
        load(*args, **kwargs)
    return str(caught.value)


# --- precedence


def test_without_any_source_the_defaults_hold():
    assert load() == Settings()
    assert Settings().long_poll_ms == 3000
    assert Settings().append_bytes_max == 64 * MIB


def test_each_source_overrides_the_one_before(tmp_path):
    toml, environ = "long_poll_ms = 100", {"MILLSTREAM_LONG_POLL_MS": "200"}
    assert load(toml, tmp_path).long_poll_ms == 100
    assert load(toml, tmp_path, environ).long_poll_ms == 200
    assert load(toml, tmp_path, environ, long_poll_ms="300").long_poll_ms == 300


def test_sources_that_name_different_keys_add_up(tmp_path):
    settings = load('node_id = "a"', tmp_path, {"MILLSTREAM_PRODUCERS_MAX": "7"}, insecure=True)
    assert (settings.node_id, settings.producers_max, settings.insecure) == ("a", 7, True)


def test_a_flag_that_was_not_used_changes_nothing(tmp_path):
    assert load('listen = "127.0.0.1:1"', tmp_path, listen=None).listen == "127.0.0.1:1"


def test_variables_of_other_programs_are_left_alone():
    assert load(environ={"PATH": "/bin", "MILL": "x", "XMILLSTREAM_A": "y"}) == Settings()


def test_a_mistake_is_found_although_a_later_source_replaces_it(tmp_path):
    assert "in the file" in refused("long_poll_ms = -1", tmp_path, long_poll_ms="300")


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().listen = "127.0.0.1:1"  # type: ignore[misc]


# --- how values are written


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("65536", 65536), ("64KiB", 64 * KIB), ("64 MiB", 64 * MIB), ("2gib", 2 * GIB), ("5kB", 5000)],
)
def test_sizes_as_text(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "1.5MiB", "-1", "1XiB", "1 2", "0x10", "1_000"])
def test_what_is_not_a_size(text):
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=10**15))
def test_a_size_survives_being_written(size):
    assert parse_size(format_size(size)) == size


def test_sizes_are_numbers_or_text_in_every_source(tmp_path):
    assert load("read_bytes_max = 65536", tmp_path).read_bytes_max == 65536
    assert load('read_bytes_max = "64KiB"', tmp_path).read_bytes_max == 65536
    assert load(environ={"MILLSTREAM_READ_BYTES_MAX": "64KiB"}).read_bytes_max == 65536
    assert load(read_bytes_max="65536").read_bytes_max == 65536


@pytest.mark.parametrize("word", ["true", "yes", "on", "1", "TRUE"])
def test_switches_as_text(word):
    assert load(environ={"MILLSTREAM_INSECURE": word}).insecure is True


def test_lists(tmp_path):
    origins = ("https://app.example", "http://[::1]:3000")
    toml = 'cors_origins = ["https://app.example", "http://[::1]:3000"]'
    assert load(toml, tmp_path).cors_origins == origins
    assert load(environ={"MILLSTREAM_CORS_ORIGINS": ", ".join(origins)}).cors_origins == origins
    assert load(allowed_hosts="Streams.example").allowed_hosts == ("streams.example",)
    assert load(environ={"MILLSTREAM_ALLOWED_HOSTS": ""}).allowed_hosts == ()


def test_keys_may_stand_in_a_server_table(tmp_path):
    toml = 'version = 1\n[server]\nnode_id = 1\nlisten = "127.0.0.1:5000"\nadvertise = "10.0.0.1:5000"\n'
    settings = load(toml, tmp_path)
    assert (settings.node_id, settings.listen, settings.advertise) == ("1", "127.0.0.1:5000", "10.0.0.1:5000")


def test_every_default_is_allowed_in_every_way_of_writing_it():
    for key in KEYS.values():
        as_text = {key.environment_name: key.shown(key.default)}
        field = key.name.replace(".", "_")
        assert getattr(load(environ=as_text), field) == key.default, key.name
        assert getattr(load(**{key.name: key.default}), field) == key.default, key.name


def test_keys_with_a_dot_stand_in_their_table(tmp_path):
    settings = load("[s3p]\nbuckets = true\ncount_max = 5000\n", tmp_path)
    assert (settings.s3p_buckets, settings.s3p_count_max) == (True, 5000)
    assert load(environ={"MILLSTREAM_S3P__COUNT_MAX": "2000"}).s3p_count_max == 2000
    assert load(**{"s3p.listen": "none"}).s3p_address is None
    assert "did you mean s3p.buckets?" in refused("[s3p]\nbucket = true", tmp_path)
    assert "use a table [s3p]" in refused("s3p = 1", tmp_path)
    assert "s3p.listen (on the command line) cannot be" in refused(**{"s3p.listen": "off"})
    assert "--insecure" in refused(**{"s3p.listen": "0.0.0.0:7500"})
    assert "s3p.count_default = 1000 (the default)" in refused(**{"s3p.count_max": 10})


def test_every_setting_is_described_and_says_what_is_allowed():
    for key in KEYS.values():
        assert key.description, key.name
        assert key.allowed(), key.name
        assert len(key.description) < 80, key.name


# --- errors


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("long_poll_ms", "0"),
        ("long_poll_ms", "soon"),
        ("long_poll_ms", "1.5"),
        ("idle_timeout_s", "nan"),
        ("idle_timeout_s", "inf"),
        ("idle_timeout_s", "-1"),
        ("head_bytes_max", "1"),
        ("head_bytes_max", "2GiB"),
        ("head_bytes_max", "big"),
        ("insecure", "maybe"),
        ("log_level", "loud"),
        ("log_format", ""),
        ("node_id", "a b"),
        ("version", "2"),
        ("listen", "4437"),
        ("listen", ":4437"),
        ("listen", "[::1]"),
        ("listen", "[zz]:1"),
        ("listen", "[1::2::3]:1"),
        ("listen", "127.0.0.1:70000"),
        ("advertise", "nowhere"),
        ("data_dir", ""),
        ("allowed_hosts", "a b"),
        ("allowed_hosts", "host:80"),
        ("cors_origins", "app.example"),
        ("cors_origins", "https://app.example/path"),
    ],
)
def test_a_bad_value_is_named_with_its_source_and_what_is_allowed(name, text):
    key = KEYS[name]
    message = refused(environ={key.environment_name: text})
    assert message.startswith(f"{name} (in the environment variable {key.environment_name})")
    assert message.endswith(f"use {key.allowed()}")


@pytest.mark.parametrize(
    "toml",
    [
        'long_poll_ms = "500"',
        "long_poll_ms = true",
        "long_poll_ms = 1.0",
        "insecure = 1",
        'insecure = "true"',
        "listen = 4437",
        'idle_timeout_s = "75"',
        'allowed_hosts = "a"',
        "allowed_hosts = [1]",
        "data_dir = 1",
        "node_id = true",
        "log_level = []",
    ],
)
def test_a_file_has_types_and_they_are_kept(toml, tmp_path):
    message = refused(toml, tmp_path)
    assert message.startswith(toml.split()[0])
    assert "in the file" in message
    assert "use " in message


def test_an_unknown_key_is_named_and_the_nearest_one_offered(tmp_path):
    assert "long_pol_ms" in refused("long_pol_ms = 1", tmp_path)
    assert "did you mean long_poll_ms?" in refused("long_pol_ms = 1", tmp_path)
    assert "did you mean long_poll_ms?" in refused(environ={"MILLSTREAM_LONG_POL_MS": "1"})
    assert "millstream settings" in refused(zzzzzz="1")


@pytest.mark.parametrize("table", ["cold", "cluster"])
def test_tables_of_later_versions_are_refused(table, tmp_path):
    assert "not available in this version" in refused(f'[{table}]\nbackend = "fs"', tmp_path)
    variable = {f"MILLSTREAM_{table.upper()}__BACKEND": "fs"}
    assert "not available in this version" in refused(environ=variable)


@pytest.mark.parametrize(
    ("name", "instead"),
    [("hot_payload_backend", "hot_bytes_max"), ("write_only_leader", "leave the key out")],
)
def test_keys_of_other_servers_are_refused_with_what_to_use(name, instead, tmp_path):
    message = refused(f'[server]\n{name} = "x"', tmp_path)
    assert name in message
    assert instead in message


def test_a_key_at_the_top_and_in_server_is_refused(tmp_path):
    assert "given twice" in refused('node_id = "a"\n[server]\nnode_id = "b"', tmp_path)


def test_a_server_that_is_no_table_is_refused(tmp_path):
    assert refused("server = 1", tmp_path).startswith("server (in the file")


def test_a_file_that_cannot_be_read_or_parsed(tmp_path):
    with pytest.raises(SettingsError, match="No such file"):
        load_settings(tmp_path / "missing.toml", {}, {})
    assert "not valid TOML" in refused("listen = ", tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'node_id = "\xe9"')
    with pytest.raises(SettingsError, match="not valid TOML"):
        load_settings(tmp_path / "latin.toml", {}, {})


def test_limits_that_contradict_each_other(tmp_path):
    message = refused("long_poll_ms_max = 1000", tmp_path)
    assert "long_poll_ms = 3000 (the default)" in message
    assert "long_poll_ms_max = 1000 (in the file" in message
    assert "inflight_bytes_max = 1MiB (on the command line)" in refused(inflight_bytes_max="1MiB")


# --- addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:4437", Address("127.0.0.1", 4437)),
        ("[::1]:4437", Address("::1", 4437)),
        ("localhost:0", Address("localhost", 0)),
    ],
)
def test_addresses(text, address):
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.9.9.9:1", "localhost:4437", "LOCALHOST:1", "[::1]:4437"])
def test_loopback_needs_no_switch(listen):
    assert load(listen=listen).address.is_loopback


@pytest.mark.parametrize("listen", ["0.0.0.0:4437", "[::]:4437", "10.0.0.1:80", "streams.example:80"])
def test_other_addresses_need_insecure(listen):
    message = refused(listen=listen)
    assert listen in message
    assert "--insecure" in message
    assert load(listen=listen, insecure=True).listen == listen
