import json
import os

import pytest

from steersman_operator.standalone.layout import MAX_SOCKET_PATH, Layout
from steersman_sim.demo.fleet import metrics_urls, short_parent
from steersman_sim.demo.options import DemoError


def test_the_sockets_of_the_fleet_fit_into_the_directory(tmp_path):
    longest = "/" + "x" * 58
    assert short_parent(longest) == longest
    layout = Layout(tmp_path)
    below = max(
        len(os.fsencode(path.relative_to(tmp_path))) for path in (layout.api, layout.control)
    )
    assert len(f"{longest}/steersman-demo-12345678/") + below <= MAX_SOCKET_PATH


def test_a_directory_with_a_longer_path_is_not_used():
    assert short_parent("/" + "x" * 59) == "/tmp"
    assert short_parent("/" + "ä" * 40) == "/tmp"


def test_the_proxies_are_found_in_what_the_command_prints():
    items = [{"kind": "Proxy", "status": {"metrics_url": f"http://h:{port}"}} for port in (1, 2)]
    assert metrics_urls(json.dumps({"items": items})) == ["http://h:1", "http://h:2"]


@pytest.mark.parametrize("output", ["", "no", "{}", '{"items": [{"status": {}}]}'])
def test_another_form_is_an_error_that_shows_it(output):
    with pytest.raises(DemoError, match="`steersman get proxies` has another form"):
        metrics_urls(output)
