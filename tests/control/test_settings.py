"""The configuration of following an operator."""

import argparse
from pathlib import Path

import pytest
import zmq

from steersman.documents import parse_document
from steersman.errors import DocumentError
from steersman_proxy.config.load import load_config, read_config
from steersman_proxy.config.overrides import add_flags, overrides_of
from steersman_proxy.control.addresses import checked_address, is_named


def settings_of(tmp_path: Path, text: str, *flags: str):
    path = tmp_path / "proxy.yaml"
    path.write_text(text)
    parser = argparse.ArgumentParser()
    add_flags(parser)
    overrides = overrides_of(parser.parse_args(flags))
    return load_config(path, overrides=overrides).settings


def problems(tmp_path: Path, text: str, *flags: str) -> str:
    with pytest.raises(DocumentError) as caught:
        settings_of(tmp_path, text, *flags)
    return "\n".join(caught.value.problems)


def test_without_addresses_nothing_is_followed(tmp_path: Path) -> None:
    assert settings_of(tmp_path, "listen: {port: 1}\n").control is None


def test_the_section_as_a_whole(tmp_path: Path) -> None:
    server, _ = zmq.curve_keypair()
    _, secret = zmq.curve_keypair()
    (tmp_path / "server.pub").write_bytes(server)
    (tmp_path / "proxy.key").write_bytes(secret + b"\n")

    control = settings_of(
        tmp_path,
        """\
control:
  addresses: ["tcp://operator.ns.svc:7000", "tcp://[::1]:7000"]
  uid: pod-a
  serverKeyFile: server.pub
  secretKeyFile: proxy.key
""",
    ).control

    assert control is not None
    assert control.addresses == ("tcp://operator.ns.svc:7000", "tcp://[::1]:7000")
    assert (control.uid, control.insecure) == ("pod-a", False)
    assert (control.server_key, control.secret_key) == (server.decode(), secret.decode())
    assert secret.decode() not in repr(control)


def test_the_flag_takes_several_addresses(tmp_path: Path) -> None:
    made = settings_of(tmp_path, "control: {uid: x}\n", "--control", "ipc:///a, ipc:///b")

    assert made.control is not None
    assert made.control.addresses == ("ipc:///a", "ipc:///b")
    assert made.control.uid == "x"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('control: {addresses: ["http://x:1"]}', "must be ipc:///path/to/socket or tcp://"),
        ('control: {addresses: ["tcp://x"]}', "must be ipc:///path/to/socket or tcp://"),
        ('control: {addresses: ["tcp://x:0"]}', "must be ipc:///path/to/socket or tcp://"),
        ('control: {addresses: ["tcp://x:70000"]}', "must be ipc:///path/to/socket or tcp://"),
        ("control: {addresses: [1]}", "must be text"),
        ('control: {addresses: ["tcp://x:1"]}', "needs control.serverKeyFile"),
        (
            'table: {file: t.yaml}\ncontrol: {addresses: ["ipc:///x"]}',
            "and table.file are both set",
        ),
        ('control: {addresses: ["ipc:///x"], serverKeyFile: a}', "together with its counterpart"),
        (
            'control: {addresses: ["ipc:///x"], serverKeyFile: a, secretKeyFile: b}',
            "cannot be read",
        ),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, text: str, said: str) -> None:
    assert said in problems(tmp_path, text)


def test_insecure_tcp_can_be_meant(tmp_path: Path) -> None:
    made = settings_of(tmp_path, 'control: {addresses: ["tcp://x:1"], insecure: true}')

    assert made.control is not None
    assert made.control.insecure


def test_a_bad_key_file_is_never_quoted(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-never-shown")
    said = problems(
        tmp_path, 'control: {addresses: ["ipc:///x"], serverKeyFile: key, secretKeyFile: key}'
    )

    assert "is not a CURVE key" in said
    assert "sk-never-shown" not in said


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("ipc:///run/control.sock", False),
        ("tcp://10.0.0.1:7000", False),
        ("tcp://[fd00::1]:7000", False),
        ("tcp://operator:7000", True),
    ],
)
def test_addresses(address: str, named: bool) -> None:
    assert checked_address(address) == address
    assert is_named(address) is named


def test_the_flag_is_named_in_its_problems() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    overrides = overrides_of(parser.parse_args(["--control", "nonsense"]))

    with pytest.raises(DocumentError) as caught:
        read_config(parse_document("p.yaml", b"listen: {port: 1}\n"), overrides=overrides)

    assert caught.value.problems[0].startswith("--control")
