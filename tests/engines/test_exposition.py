"""Reading ``/metrics``."""

import pytest

from steersman_operator.engines.exposition import parse

TEXT = """\
# HELP vllm:running How many run; vllm:running 7 is no sample.
# TYPE vllm:running gauge
vllm:running{engine="0",model_name="a \\"b\\", {c}"} 2.0
vllm:running{engine="1",model_name="a \\"b\\", {c}"} 3 1700000000000
vllm:running_total 50
vllm:state{state="awake"} 1.0
vllm:state{state="gone"}\t0
vllm:odd NaN
vllm:odd +Inf
vllm:odd twelve
vllm:odd
vllm:empty{} 4
  vllm:indented 1
last 1.75e+09"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("name", "labels", "total"),
    [
        ("vllm:running", {}, 5.0),
        ("vllm:running", {"engine": "1"}, 3.0),
        ("vllm:running", {"engine": "2"}, None),
        ("vllm:runn", {}, None),
        ("vllm:running_total", {}, 50.0),
        ("vllm:state", {"state": "awake"}, 1.0),
        ("vllm:state", {"state": "gone"}, 0.0),
        ("vllm:odd", {}, None),
        ("vllm:empty", {}, 4.0),
        ("vllm:indented", {}, None),
        ("last", {}, 1.75e9),
        ("never", {}, None),
    ],
)
def test_the_sum_of_what_is_asked_for(
    end: str, name: str, labels: dict[str, str], total: float | None
) -> None:
    for text in (TEXT, TEXT + "\n"):
        samples = parse(text.replace("\n", end))
        assert samples.total(name, **labels) == total
        assert samples.total(name, **labels) == total


def test_nothing_was_answered() -> None:
    assert parse("").total("any") is None
