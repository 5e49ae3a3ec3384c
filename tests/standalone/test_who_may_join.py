"""Only processes that the supervisor has started take part."""

from pathlib import Path

from steersman.clock import FakeClock
from steersman_operator.fleet.events import ProxiesRequired, ProxyRef
from steersman_operator.standalone.account import Account, ProxyProcess, write_account
from steersman_operator.standalone.proxies import ProxyAccount


def account_of(
    tmp_path: Path, *processes: ProxyProcess
) -> tuple[ProxyAccount, list[ProxiesRequired]]:
    write_account(tmp_path / "proxies.json", Account(starts=len(processes), processes=processes))
    told: list[ProxiesRequired] = []
    return ProxyAccount(tmp_path / "proxies.json", clock=FakeClock(), feed=told.append), told


def test_a_process_that_was_started_may_join_and_is_known_by_then(tmp_path: Path) -> None:
    account, told = account_of(tmp_path, ProxyProcess(uid="proxy-0.1", boot="b"))

    assert account.may_join(ProxyRef("proxy-0.1", "b"), None)
    assert [one.proxies for one in told] == [(ProxyRef("proxy-0.1", "b"),)]


def test_somebody_else_under_its_name_may_not(tmp_path: Path) -> None:
    """It could acknowledge in its name, and its own words would not count any more."""
    account, _ = account_of(tmp_path, ProxyProcess(uid="proxy-0.1", boot="b"))

    assert not account.may_join(ProxyRef("proxy-0.1", "liar"), None)
    assert not account.may_join(ProxyRef("proxy-0.2", "b"), None)


def test_nobody_may_before_there_is_an_account(tmp_path: Path) -> None:
    told: list[ProxiesRequired] = []
    account = ProxyAccount(tmp_path / "proxies.json", clock=FakeClock(), feed=told.append)

    assert not account.may_join(ProxyRef("proxy-0.1", "b"), None)
    assert told == []
