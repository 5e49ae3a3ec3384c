"""The networks that tests cut."""

import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.up.netns.fleet import Network
from tests.up.netns.network import REFUSALS, Refused, namespaces
from tests.up.netns.relay import Relay


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    made = Relay()
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
def network(relay: Relay) -> Iterator[Network]:
    """Namespaces with a router in between; a relay only where the kernel refuses those."""
    with contextlib.ExitStack() as stack:
        refusal: Refused | None = None
        made: Network = relay
        try:
            made = stack.enter_context(namespaces())
        except Refused as error:
            refusal = error
        # Nothing else than the kernel's own no is a reason to do with less.
        assert refusal is None or REFUSALS.search(str(refusal)), refusal
        yield made
