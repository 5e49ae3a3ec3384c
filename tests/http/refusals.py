"""What has to be true of every request that is refused before it is one."""

from steersman.errors import Fault, InvalidRequest
from steersman_proxy.exchange.messages import ExchangeRecord, Outcome
from tests.http.adapter import AdapterRig, Answered, Client
from tests.http.client import until


async def refused(client: Client, *, status: int = 400) -> Answered:
    """Read one answer that refuses, in our own words, and then the end of the connection."""
    got = await client.answer()
    assert got.status == status
    assert got.whole
    assert got.values(b"connection") == [b"close"]
    error = got.error
    assert set(error) == {"type", "code", "message", "param"}
    assert 20 < len(error["message"]) < 300
    assert error["message"].isprintable()
    assert await client.reader.read() == b""
    return got


async def recorded(rig: AdapterRig, *, fault: Fault, number: int = 1) -> ExchangeRecord:
    """The last of ``number`` records: of the request that was refused for this fault."""
    await until(lambda: len(rig.recorder.records) >= number)
    assert len(rig.recorder.records) == number
    record = rig.recorder.records[-1]
    assert record.outcome is Outcome.REJECTED
    assert isinstance(record.error, InvalidRequest)
    assert record.error.fault is fault
    assert record.status == record.error.status
    return record
