"""The files of the demonstration are read here by the proxy's own readers."""

import pytest

from steersman_proxy.config.load import load_config
from steersman_proxy.tablefile import load_table_file
from steersman_sim.demo.records import NEW, OLD
from steersman_sim.demo.table import MODEL, Row, TableFile, render_config


@pytest.fixture
def table(tmp_path) -> TableFile:
    rows = {
        name: Row(id=name, url=f"http://127.0.0.1:900{number}", version=OLD)
        for number, name in enumerate(("engine-1", "engine-2"))
    }
    return TableFile(tmp_path / "table.yaml", rows=rows)


def test_the_proxy_reads_the_table(table):
    (pool,) = load_table_file(table.path).pools
    assert pool.model == MODEL
    assert [(engine.id, engine.gate, engine.weight_version) for engine in pool.engines] == [
        ("engine-1", "open", OLD),
        ("engine-2", "open", OLD),
    ]


def test_an_edit_changes_one_row_and_only_what_is_named(table):
    table.edit("engine-2", gate="closed")
    table.edit("engine-2", control="asleep", version=NEW)
    first, second = load_table_file(table.path).pools[0].engines
    assert (first.gate, first.control, first.weight_version) == ("open", "active", OLD)
    assert (second.gate, second.control, second.weight_version) == ("closed", "asleep", NEW)


def test_an_edit_replaces_the_file_as_a_whole(table):
    before = table.path.read_text()
    with table.path.open() as reader:  # somebody who opened the old file goes on reading it
        table.edit("engine-1", gate="closed")
        assert reader.read() == before
    assert table.path.read_text() != before
    assert [path.name for path in table.path.parent.iterdir()] == ["table.yaml"]


def test_the_proxy_reads_the_configuration(tmp_path):
    path = tmp_path / "proxy.yaml"
    path.write_text(render_config(port=8001, metrics_port=8002))
    loaded = load_config(path)
    assert not loaded.warnings
    assert (loaded.settings.port, loaded.settings.metrics_port) == (8001, 8002)
    assert loaded.settings.defaults.sticky_pause
