"""docs/operations.md lists every series, and no other."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from steersman.control import Ping
from steersman.engine import Control
from steersman.table import Epoch
from steersman_operator.api.metrics.gates import Closing
from steersman_operator.api.metrics.operations import Ending
from steersman_operator.fleet.state import Phase
from steersman_proxy.metrics import ProxyMetrics
from tests.control.operators import Stage
from tests.control.support import row as table_row
from tests.control.support import table
from tests.operator_metrics.support import Counted
from tests.operator_metrics.test_control import stats

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
ROW = re.compile(
    r"^\| `(?P<name>steersman_\w+)` \| (?P<type>\w+) \| (?P<labels>[\w, ]*)\| ", re.MULTILINE
)
EXPRESSION = re.compile(r"steersman_\w+")
OUR_OWN = "steersman_operator_"
CONTROL = "steersman_control_"

Described = dict[str, tuple[str, frozenset[str]]]
"""By name: type and labels."""


def documented(prefix: str) -> Described:
    found: Described = {}
    for match in ROW.finditer(PAGE.read_text()):
        if match["name"].startswith(prefix):
            assert match["name"] not in found, f"{match['name']} is there twice"
            labels = [label.strip() for label in match["labels"].split(",")]
            found[match["name"]] = (match["type"], frozenset(filter(None, labels)))
    return found


def exposed(body: bytes, prefix: str) -> Described:
    found: Described = {}
    for family in text_string_to_metric_families(body.decode()):
        if family.name.startswith(prefix):
            name = family.name + "_total" * (family.type == "counter")
            labels = {label for sample in family.samples for label in sample.labels}
            found[name] = (family.type, frozenset(labels - {"le"}))
    return found


def busy_operator() -> bytes:
    """With every series that there is."""
    bench = Counted("ab")
    bench.metrics.watch(lambda: bench.state, stats)
    bench.want(Control.ASLEEP)
    assert bench.run(20, lambda: bench.settled(Control.ASLEEP))
    return bench.metrics.render()[0]


def test_every_series_of_the_operator_is_documented_and_no_other() -> None:
    assert documented(OUR_OWN) == exposed(busy_operator(), OUR_OWN)


def test_every_series_of_a_proxy_s_end_of_the_control_socket_is_documented() -> None:
    stage = Stage()
    operator = stage.operator()
    operator.join()
    operator.sends(table(table_row("a")))
    operator.says(Ping(1, Epoch(1, 1), "", 0))
    metrics = ProxyMetrics(stage.fleet, rl_enabled=True, control=lambda: stage.follower.status)
    assert documented(CONTROL) == exposed(metrics.exposition()[0], CONTROL)


def test_what_labels_can_say_is_documented() -> None:
    page = PAGE.read_text()
    for word in (*Ending, *Closing, Phase.DRAINING, Phase.CLAIMING, Phase.EXECUTING):
        assert f"`{word.value}`" in page, word
    for ending in Ending:
        assert f"\n| `{ending.value}` | " in page


def test_alerts_name_series_that_exist() -> None:
    page = PAGE.read_text()
    alerts = page[page.index("groups:") :]
    named = set(EXPRESSION.findall(alerts))
    assert named
    known = documented(OUR_OWN).keys() | documented(CONTROL).keys()
    assert named <= known
    assert 'phase="Draining"' in alerts
