"""Durations, sizes, numbers and texts with a grammar."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from steersman.documents.document import WrittenFloat, WrittenInt
from steersman.documents.values import port, positive, seconds, size, version, whole
from steersman_proxy.config.names import header_name, host, origin, pool_name


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("500ms", 0.5), ("30s", 30.0), ("10m", 600.0), ("1h", 3600.0), ("1h30m", 5400.0),
        ("1.5s", 1.5), ("0s", 0.0), (0, 0.0), (2, 2.0), (0.25, 0.25), (WrittenInt(42, "042"), 42.0),
        ("720h", 2592000.0),
    ],
)  # fmt: skip
def test_durations(written: Any, value: float) -> None:
    assert seconds(written) == value


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("30", "must be seconds or a text such as 500ms, 30s, 10m or 1h, found '30'"),
        ("30 s", "must be seconds or a text such as 500ms, 30s, 10m or 1h, found '30 s'"),
        ("-1s", "must be seconds or a text such as 500ms, 30s, 10m or 1h, found '-1s'"),
        ("1d", "must be seconds or a text such as 500ms, 30s, 10m or 1h, found '1d'"),
        ("", "must be seconds or a text such as 500ms, 30s, 10m or 1h, found ''"),
        (-1, "must not be negative, found -1"),
        (math.nan, "must be a finite number, found nan"),
        (WrittenFloat(".inf"), "must be a finite number, found .inf"),
        (10**400, f"must be a finite number, found {'1' + '0' * 39}…"),
        (True, "must be seconds or a text such as 30s, found true"),
        (None, "must be seconds or a text such as 30s, found nothing"),
        ([1], "must be seconds or a text such as 30s, found a list"),
        ("721h", "must not be longer than 30 days (in seconds), found 721h"),
    ],
)
def test_what_is_no_duration(written: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        seconds(written)
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (1024, 1024), (0, 0), ("8MiB", 8 * 1024**2), ("2GiB", 2 * 1024**3), ("512 KiB", 512 * 1024),
        ("1MB", 10**6), ("1kB", 1000), ("1.5KiB", 1536), ("7B", 7),
    ],
)  # fmt: skip
def test_sizes(written: Any, value: int) -> None:
    assert size(written) == value


@pytest.mark.parametrize("written", ["8", "8M", "8mib", "-1MiB", "MiB", "", -1, 1.5, True, None])
def test_what_is_no_size(written: Any) -> None:
    with pytest.raises(ValueError, match=r"^must be "):
        size(written)


@pytest.mark.parametrize("written", [-1, 65536, 80.0, "80", True, None, 10**400])
def test_what_is_no_port(written: Any) -> None:
    with pytest.raises(ValueError, match=r"^must be a port number from 0 to 65535, found "):
        port(written)


@pytest.mark.parametrize("check", [whole, positive])
@pytest.mark.parametrize("written", [-1, 1.5, "1", True, None, math.nan, 2**60])
def test_what_is_no_whole_number(check: Callable[[Any], int], written: Any) -> None:
    with pytest.raises(ValueError, match=r"^must be "):
        check(written)


def test_a_whole_number_may_be_written_with_an_exponent() -> None:
    assert whole(WrittenFloat("1e3")) == 1000
    with pytest.raises(ValueError, match=r"^must be at least 1, found 0$"):
        positive(0)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (WrittenInt(10, "10"), "10"), (WrittenInt(34, "042"), "042"), (WrittenInt(16, "0x10"), "0x10"),
        (WrittenFloat("1.10"), "1.10"), (WrittenFloat("1e3"), "1e3"), (" step-7 ", "step-7"),
        (None, None),
    ],
)  # fmt: skip
def test_a_version_is_the_text_as_written(written: Any, value: str | None) -> None:
    assert version(written) == value


@pytest.mark.parametrize("written", [10, 1.1, True, [], "a b", "", "ä", "x" * 129])
def test_a_version_whose_text_is_unknown_or_unfit_is_refused(written: Any) -> None:
    """A bare 10 cannot come from a file; from anywhere else its text is a guess."""
    with pytest.raises(ValueError, match=r"version"):
        version(written)


@pytest.mark.parametrize(
    ("written", "value"),
    [("::1", "::1"), ("[::1]", "::1"), ("0:0:0:0:0:0:0:1", "::1"), ("10.0.0.1", "10.0.0.1"),
     ("localhost", "localhost"), ("proxy-0.proxy.ns.svc", "proxy-0.proxy.ns.svc")],
)  # fmt: skip
def test_hosts(written: str, value: str) -> None:
    assert host(written) == value


@pytest.mark.parametrize(
    "written", ["", "http://a", "a:80", "[a]", "a/b", "a b", "300.1.1.1", "1.2.3", "ä", 1, None]
)
def test_what_is_no_host(written: Any) -> None:
    with pytest.raises(ValueError, match=r"^must be "):
        host(written)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("*", "*"), ("https://Example.org", "https://example.org"),
        ("https://a.org:443", "https://a.org"), ("http://a.org:8080", "http://a.org:8080"),
        ("http://[::1]:3000", "http://[::1]:3000"),
    ],
)  # fmt: skip
def test_origins_are_spelt_as_browsers_spell_them(written: str, value: str) -> None:
    assert origin(written) == value


@pytest.mark.parametrize(
    "written",
    ["a.org", "ftp://a.org", "https://", "https://a.org/", "https://a.org/x", "https://a.org?",
     "https://u:p@a.org", "https://*.a.org", "https://a.org:99999", "null", 1],
)  # fmt: skip
def test_what_is_no_origin(written: Any) -> None:
    with pytest.raises(ValueError, match=r"^must be "):
        origin(written)


@pytest.mark.parametrize("written", ["", "-a", "a b", "ä", "a:b", "x" * 129, 1])
def test_what_is_no_pool_name(written: Any) -> None:
    with pytest.raises(ValueError, match=r"^must be "):
        pool_name(written)


@pytest.mark.parametrize("written", ["", "a b", "Content-Length", "authorization", "a:", 1])
def test_what_is_no_header_name(written: Any) -> None:
    with pytest.raises(ValueError, match=r"^(must be|cannot be) "):
        header_name(written)
