"""What is judged before a byte of the body is read."""

import msgspec
import pytest

from steersman_proxy.exchange.admission import OWN_BODY_LIMIT
from steersman_proxy.exchange.messages import ReadBody, Respond
from tests.exchange.support import World, error_of, header, row


def world(**settings: object) -> World:
    return World(row("e0"), **settings)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/nothing",
        "/generate/",
        "/generate%2f..",
        "//generate",
        "/GENERATE",
        "/v1/models/../../pause_generation",
        "/pause_generation",
        "/update_weights_from_disk",
        "/workers",
        "/metrics",
        "/v1/rl/workers",
    ],
)
def test_an_unlisted_path_is_nobodys(path: str) -> None:
    respond = world().exchange(path).start()

    if path == "/v1/models/../../pause_generation":
        # Below a route of ours: answered by the proxy, never sent to an engine.
        assert error_of(respond) == (405, "method_not_allowed")
    else:
        assert error_of(respond) == (404, "unknown_url")


def test_a_wrong_method_names_the_right_ones() -> None:
    respond = world().exchange("/v1/chat/completions", "GET").start()

    assert error_of(respond) == (405, "method_not_allowed")
    assert isinstance(respond, Respond)
    assert header(respond.headers, "allow") == "POST"


@pytest.mark.parametrize("text", ["", "latest", "max-staleness:-1", "\u00e9"])
def test_a_bad_policy_header_is_400_on_every_route(text: str) -> None:
    for path in ("/generate", "/v1/models"):
        method = "GET" if path == "/v1/models" else "POST"
        respond = world().exchange(path, method, x_smg_version_policy=text).start()
        assert error_of(respond) == (400, "invalid_version_policy")


def test_the_key_is_judged_before_route_and_policy() -> None:
    keyed = world(api_keys=("k0",))

    for path in ("/generate", "/nothing"):
        respond = keyed.exchange(path, x_smg_version_policy="nonsense").start()
        assert error_of(respond) == (401, "unauthorized")


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer k0"},
        {"Authorization": "bearer  k0 "},
        {"x_api_key": "k1"},
        {"authorization": "Bearer admin"},
    ],
)
def test_each_key_opens_a_data_route(headers: dict[str, str]) -> None:
    keyed = world(api_keys=("k0", "k1"), admin_key="admin")

    assert isinstance(keyed.exchange(**headers).start(), ReadBody)


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer k", "Bearer k00", "k0x", "Basic k0"])
def test_what_is_not_a_key_opens_nothing(value: str) -> None:
    keyed = world(api_keys=("k0",))

    assert error_of(keyed.exchange(authorization=value).start()) == (401, "unauthorized")


def test_flush_takes_the_admin_key_only() -> None:
    keyed = world(api_keys=("k0",), admin_key="admin")

    as_client = keyed.exchange("/flush_cache", authorization="Bearer k0").start()
    as_admin = keyed.exchange("/flush_cache", authorization="Bearer admin").start()

    assert error_of(as_client) == (403, "admin_key_required")
    assert isinstance(as_admin, ReadBody)


def test_without_an_admin_key_a_data_key_flushes() -> None:
    keyed = world(api_keys=("k0",))

    assert isinstance(keyed.exchange("/flush_cache", authorization="Bearer k0").start(), ReadBody)
    assert error_of(keyed.exchange("/flush_cache").start()) == (401, "unauthorized")


@pytest.mark.parametrize("path", ["/health", "/liveness", "/readiness", "/health_generate"])
def test_probes_carry_no_key(path: str) -> None:
    assert isinstance(world(api_keys=("k0",)).exchange(path, "GET").start(), ReadBody)


def test_a_declared_size_over_the_limit_is_refused_before_the_upload() -> None:
    respond = world(max_body_bytes=10).exchange(content_length="11").start()

    assert error_of(respond) == (413, "body_too_large")
    assert isinstance(respond, Respond)
    assert respond.close


@pytest.mark.parametrize("path", ["/health", "/abort_request"])
def test_a_route_of_our_own_takes_no_large_body(path: str) -> None:
    """Probes carry no key, so that anybody could fill the memory with theirs."""
    method = "POST" if path == "/abort_request" else "GET"
    read = world().exchange(path, method).start()
    declared = world().exchange(path, method, content_length=str(OWN_BODY_LIMIT + 1)).start()

    assert read == ReadBody(OWN_BODY_LIMIT)
    assert error_of(declared) == (413, "body_too_large")
    assert world(max_body_bytes=10).exchange(path, method).start() == ReadBody(10)


def test_rl_off_ignores_the_policy_header() -> None:
    plain = world(rl_enabled=False)

    assert isinstance(plain.exchange(x_smg_version_policy="nonsense").start(), ReadBody)


PREFLIGHT = {
    "origin": "https://app.example",
    "access_control_request_method": "POST",
    "access_control_request_headers": "x-smg-version-policy",
}


def test_a_preflight_needs_no_key_and_lists_what_browsers_may_send_and_read() -> None:
    open_ = world(api_keys=("k0",), allowed_origins=("https://app.example",))

    respond = open_.exchange("/generate", "OPTIONS", **PREFLIGHT).start()

    assert isinstance(respond, Respond)
    assert respond.status == 204
    assert header(respond.headers, "access-control-allow-origin") == "https://app.example"
    allowed = header(respond.headers, "access-control-allow-headers") or ""
    for name in (
        "content-type",
        "authorization",
        "x-smg-version-policy",
        "x-smg-routing-key",
        "x-session-id",
    ):
        assert name in allowed.split(", ")


@pytest.mark.parametrize("origins", [(), ("https://other.example",)])
def test_a_preflight_of_another_origin_is_an_ordinary_request(origins: tuple[str, ...]) -> None:
    closed = world(allowed_origins=origins)

    respond = closed.exchange("/generate", "OPTIONS", **PREFLIGHT).start()

    assert error_of(respond) == (405, "method_not_allowed")
    assert isinstance(respond, Respond)
    assert header(respond.headers, "access-control-allow-origin") is None


def test_an_error_can_be_read_by_an_allowed_origin() -> None:
    open_ = world(allowed_origins=("*",))

    respond = open_.exchange("/nothing", origin="https://any.example").start()

    assert isinstance(respond, Respond)
    assert header(respond.headers, "access-control-allow-origin") == "*"
    exposed = header(respond.headers, "access-control-expose-headers") or ""
    assert set(exposed.split(", ")) == {
        "x-smg-routed-worker-id",
        "x-smg-weight-version",
        "x-smg-mixed-version",
        "x-request-id",
    }


def test_draining_refuses_new_data_requests_and_answers_probes() -> None:
    leaving = world()
    leaving.context.draining = True

    assert error_of(leaving.exchange().start()) == (503, "draining")
    assert isinstance(leaving.exchange("/liveness", "GET").start(), ReadBody)


def test_our_errors_say_where_and_what_to_do() -> None:
    respond = world().exchange(x_smg_version_policy="latest").start()

    assert isinstance(respond, Respond)
    message = msgspec.json.decode(respond.body)["error"]["message"]
    assert "'latest'" in message
    assert "latest-only" in message
    assert header(respond.headers, "x-smg-error-code") == "invalid_version_policy"
