import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.image import imread

from steersman_sim.demo.judge import judge
from steersman_sim.demo.panels import edges_of, openings
from steersman_sim.demo.plot import draw, make_figure
from steersman_sim.demo.records import Records
from tests.demo.made_up import eventful_run, records


def texts(run: Records) -> str:
    figure = make_figure(run, verdict=judge(run))
    found = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        found += [text.get_text() for text in axes.texts]
    return "\n".join(found)


def test_a_png_shows_something_in_every_panel(tmp_path):
    run, path = eventful_run(), tmp_path / "run.png"
    draw(run, verdict=judge(run), path=path)
    image = imread(path)
    height, width, _ = image.shape
    assert width == 1600
    figure = make_figure(run, verdict=judge(run))
    for axes in figure.axes:
        box = axes.get_position()
        top, bottom = int((1 - box.y1) * height), int((1 - box.y0) * height)
        panel = image[top:bottom, int(box.x0 * width) : int(box.x1 * width), :3]
        colours = np.unique(panel.reshape(-1, 3).round(2), axis=0)
        assert len(colours) > 1, "the panel is blank"
        assert (panel < 0.9).any(axis=2).mean() > 0.01


def test_an_svg_is_the_same_for_the_same_run(tmp_path):
    run = eventful_run()
    paths = [tmp_path / name for name in ("one.svg", "two.svg")]
    for path in paths:
        draw(run, verdict=judge(run), path=path)
    assert ET.parse(paths[0]).getroot().tag.endswith("svg")
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_the_picture_says_what_happened():
    said = texts(eventful_run())
    for part in ("engine-1", "engine-2", "weights 7", "weights 8", "refit", "held in", "0 failed"):
        assert part in said


@pytest.mark.filterwarnings("error")
def test_an_empty_run_can_be_drawn(tmp_path):
    run, path = records(ended=1001.0), tmp_path / "empty.png"
    draw(run, verdict=judge(run), path=path)
    assert path.stat().st_size > 1000


def test_no_step_crosses_the_bounds_of_a_closure():
    edges = edges_of(eventful_run(), "engine-1", duration=10.0)
    assert {0.0, 2.6, 3.0, 5.0, 10.0} <= set(edges.round(9)), "nor the begin of a drain"
    assert (np.diff(edges) > 0).all()
    assert np.diff(edges).max() < 0.3


def test_an_engine_is_open_from_its_first_request_although_that_is_noticed_later():
    run = eventful_run()
    (closure,) = run.closures
    closure.opened = run.phases[-1].until = 1005.3
    assert openings(run, "engine-1") == {1005.3: pytest.approx(1005.004)}
    assert openings(run, "engine-2") == {}
    assert 5.004 in edges_of(run, "engine-1", duration=10.0).round(9)
    run.arrivals = []
    assert openings(run, "engine-1") == {1005.3: 1005.3}
