"""Which engines proxies are asked about."""

from steersman.control import Watch
from tests.control.support import row, table
from tests.control.wire import Wire


def test_that_less_is_watched_goes_along_with_what_comes_next() -> None:
    wire = Wire()
    session = wire.hello()
    wire.publish(table(row("a"), row("b")))
    wire.hub.watch(["a", "b"])
    wire.hub.watch(["b"])
    wire.hub.watch([])
    assert wire.got(b"p", Watch) == [Watch(("a", "b"))]

    wire.ack(b"p", session)
    assert wire.last(b"p", Watch) == Watch(())

    wire.hub.watch(["a"])
    assert wire.last(b"p", Watch) == Watch(("a",))
