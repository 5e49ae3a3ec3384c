"""Which pool a request goes to."""

import pytest

from steersman.table import PoolRow, Table
from steersman_proxy.exchange.messages import Send
from tests.exchange.support import World, error_of, row, table


def two_pools(default: str | None = None) -> World:
    world = World()
    both = table(row("a0", pool="a"), row("b0", pool="b"))
    pools = tuple(
        PoolRow(name=pool.name, models=pool.models, fleet_max="7", default=pool.name == default)
        for pool in both.pools
    )
    world.fleet.apply(Table(epoch=both.epoch, pools=pools, engines=both.engines))
    return world


def chosen(world: World, body: bytes, **headers: str) -> object:
    exchange = world.exchange("/v1/chat/completions", **headers)
    exchange.start()
    action = exchange.body([body])
    return action.engine.id if isinstance(action, Send) else error_of(action)


def test_the_model_of_the_body_names_the_pool() -> None:
    assert chosen(two_pools(), b'{"messages": [], "model": "model-b"}') == "b0"


def test_the_header_names_the_pool_and_the_body_is_not_read() -> None:
    assert chosen(two_pools(), b"not json", x_steersman_pool="a") == "a0"


def test_with_one_pool_the_body_is_not_read() -> None:
    assert chosen(World(row("e0")), b"\xff not json") == "e0"


def test_without_a_model_the_default_pool_serves() -> None:
    assert chosen(two_pools(default="b"), b"{}") == "b0"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"{}", (400, "model_required")),
        (b"", (400, "model_required")),
        (b'{"model": null}', (400, "model_required")),
        (b'{"model": "model-c"}', (404, "model_not_found")),
        (b'{"model": 7}', (400, "invalid_body")),
        (b"[]", (400, "invalid_body")),
        (b"{", (400, "invalid_body")),
        (b"\xff", (400, "invalid_body")),
        (b"[" * 100_000, (400, "invalid_body")),
    ],
)
def test_a_body_that_names_no_pool_is_a_clear_error(body: bytes, error: tuple[int, str]) -> None:
    assert chosen(two_pools(), body) == error


def test_an_unknown_pool_is_404() -> None:
    assert chosen(two_pools(), b"{}", x_steersman_pool="c") == (404, "model_not_found")


def test_a_body_in_parts_is_read_as_one() -> None:
    exchange = two_pools().exchange("/v1/chat/completions")
    exchange.start()

    action = exchange.body([b'{"mo', b'del": "mod', b'el-a"}'])

    assert isinstance(action, Send)
    assert action.body == [b'{"mo', b'del": "mod', b'el-a"}']


@pytest.mark.parametrize("name", ["x_smg_routing_key", "x_session_id", "X_Session_ID"])
def test_a_routing_key_goes_to_the_same_engine_every_time(name: str) -> None:
    world = World(*(row(f"e{i}") for i in range(8)))

    assert len({chosen(world, b"{}", **{name: "trajectory-1"}) for _ in range(20)}) == 1
    assert len({chosen(world, b"{}", **{name: f"t{i}"}) for i in range(50)}) > 4


@pytest.mark.parametrize("target", ["e9", "http://e9:1", "17", "-1"])
def test_an_unknown_target_is_503_and_named(target: str) -> None:
    assert chosen(World(row("e0")), b"{}", x_smg_target_worker=target) == (
        503,
        "target_unavailable",
    )


def test_a_target_that_is_out_is_503_and_never_another_engine() -> None:
    world = World(row("e0", paused=True), row("e1"))

    assert chosen(world, b"{}", x_smg_target_worker="e0") == (503, "target_unavailable")
    assert chosen(world, b"{}", x_smg_target_worker="1") == "e1"
