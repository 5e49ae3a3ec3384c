"""Keys: where they come from, and that nothing ever shows one."""

from pathlib import Path

import pytest

from steersman.documents import parse_document
from steersman.errors import DocumentError
from steersman_proxy.config import load_config
from steersman_proxy.config.load import read_config

SECRET = "sk-never-shown"


def config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "proxy.yaml"
    path.write_text(text)
    return path


def problems(path: Path) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        load_config(path)
    return [problem.replace(f"{path}:", "") for problem in caught.value.problems]


def test_keys_come_from_the_file_and_from_key_files(tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_text("# clients\nb\n\n  c  \r\nb\n")
    (tmp_path / "admin.txt").write_text("adm\n")
    (tmp_path / "engine.txt").write_text("eng")
    path = config(
        tmp_path,
        """
        auth: {apiKeys: [a], apiKeysFile: keys.txt, adminKeyFile: admin.txt}
        pools: {p: {engineAuth: {apiKeyFile: engine.txt}}, q: {engineAuth: {apiKey: direct}}}
        """,
    )

    settings = load_config(path).settings

    assert settings.api_keys == ("a", "b", "c")
    assert settings.admin_key == "adm"
    assert settings.engine_keys == {"p": "eng", "q": "direct"}


def test_unusable_key_files_are_told_by_key(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "empty").write_text("# none\n")
    (tmp_path / "two").write_text(f"{SECRET}-1\n{SECRET}-2\n")
    (tmp_path / "spaced").write_text(f"ok\n{SECRET} and more\n")
    (tmp_path / "binary").write_bytes(b"\xff\x00\n")
    path = config(
        tmp_path,
        """\
auth:
  apiKeysFile: spaced
  adminKeyFile: two
pools:
  a: {engineAuth: {apiKeyFile: none}}
  b: {engineAuth: {apiKeyFile: dir}}
  c: {engineAuth: {apiKeyFile: empty}}
  d: {engineAuth: {apiKeyFile: binary}}
""",
    )

    assert problems(path) == [
        (
            f"2: auth.apiKeysFile: line 2 of {tmp_path}/spaced must be visible ASCII without spaces "
            "(the key itself is not shown)"
        ),
        f"3: auth.adminKeyFile: {tmp_path}/two has 2 keys, where one is needed",
        f"5: pools.a.engineAuth.apiKeyFile: {tmp_path}/none does not exist",
        f"6: pools.b.engineAuth.apiKeyFile: {tmp_path}/dir is not a file",
        f"7: pools.c.engineAuth.apiKeyFile: {tmp_path}/empty has no key; write one a line",
        (
            f"8: pools.d.engineAuth.apiKeyFile: line 1 of {tmp_path}/binary must be visible ASCII "
            "without spaces (the key itself is not shown)"
        ),
    ]


def test_an_admin_key_that_clients_have_is_refused(tmp_path: Path) -> None:
    path = config(tmp_path, f"auth: {{apiKeys: [x, {SECRET}], adminKey: {SECRET}}}")

    assert problems(path) == [
        "1: auth.adminKey: is one of auth.apiKeys too, so every client would be an admin"
    ]


def test_two_admin_keys_are_a_contradiction(tmp_path: Path) -> None:
    (tmp_path / "admin.txt").write_text("b\n")
    path = config(tmp_path, "auth: {adminKey: a, adminKeyFile: admin.txt}")

    assert problems(path) == [
        "1: auth.adminKeyFile: and auth.adminKey are both set; keep one of them"
    ]


@pytest.mark.parametrize(
    "text",
    [
        f"auth: {{apiKeys: ['{SECRET} x']}}",
        f"auth: {{apiKeys: [['{SECRET}']]}}",
        f"auth: {{apiKeys: {SECRET}}}",
        f"auth: {{apiKeys: {{{SECRET}: 1}}}}",
        f"auth: {{adminKey: [{SECRET}]}}",
        f"auth: {{adminKey: {{{SECRET}: x}}}}",
        f"auth: {SECRET}",
        f"auth: [{SECRET}]",
        f"auth: {{{SECRET}: }}",
        f"auth: {{admin: {{{SECRET}: }}}}",
        f"auth: {{adminKey: {SECRET}, adminKeyFile: nowhere}}",
        f"pools: {{a: {{engineAuth: {SECRET}}}}}",
        f"pools: {{a: {{engineAuth: {{{SECRET}: {SECRET}}}}}}}",
        f"pools: {{a: {{engineAuth: {{apiKey: '{SECRET}\u00e9'}}}}}}",
        f"pools: {{a: {{engineAuth: {{apiKey: {SECRET}, apiKeyFile: x}}}}}}",
    ],
)
def test_no_message_repeats_a_key(text: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read_config(parse_document("proxy.yaml", text.encode()))

    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert all(problem.startswith("proxy.yaml:1: ") for problem in caught.value.problems)


def test_a_number_as_key_must_be_quoted(tmp_path: Path) -> None:
    path = config(tmp_path, "auth: {apiKeys: [735512]}")

    assert problems(path) == [
        "1: auth.apiKeys[0]: must be text, found a number or boolean; quote it to make it text"
    ]


def test_settings_do_not_show_keys() -> None:
    text = f"""
        auth: {{apiKeys: [{SECRET}-1], adminKey: {SECRET}-2}}
        pools: {{a: {{engineAuth: {{apiKey: {SECRET}-3}}}}}}
    """
    loaded = read_config(parse_document("proxy.yaml", text.encode()))

    assert SECRET not in repr(loaded.settings)
    assert SECRET not in str(loaded)
    assert SECRET not in str(list(loaded.settings.__rich_repr__()))
    assert "api_keys='<1 keys>'" in repr(loaded.settings)
    assert loaded.settings.engine_keys == {"a": f"{SECRET}-3"}
