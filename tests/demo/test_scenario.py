import pytest

from steersman_sim.demo.scenario import Action, plan


@pytest.mark.parametrize("engines", [2, 3, 4, 16])
def test_the_plan_refits_every_engine_and_fits_into_the_duration(engines):
    steps = plan(engines=engines, duration=20.0)
    renewed = [step.engine for step in steps if step.action is Action.REFIT]
    assert renewed == list(range(engines)), "each once, in order"
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    assert all(step.at + step.stay < 20.0 for step in steps)


def test_the_engine_that_is_paused_is_the_only_one_with_the_new_weights():
    refit, pause, *later = plan(engines=3, duration=20.0)
    assert (refit.action, pause.action) == (Action.REFIT, Action.PAUSE)
    assert refit.engine == pause.engine
    assert all(step.at > pause.at + pause.stay for step in later)


def test_an_engine_sleeps_before_it_gets_new_weights():
    (sleeper,) = [step for step in plan(engines=3, duration=20.0) if step.action is Action.SLEEP]
    later = plan(engines=3, duration=20.0)[3:]
    assert sleeper.engine == later[0].engine == 1
    assert sleeper.at + sleeper.stay < later[0].at


def test_the_plan_scales_with_the_duration():
    long, short = plan(engines=3, duration=20.0), plan(engines=3, duration=5.0)
    assert [step.at / 20 for step in long] == pytest.approx([step.at / 5 for step in short])
    assert [step.stay / 20 for step in long] == pytest.approx([step.stay / 5 for step in short])
