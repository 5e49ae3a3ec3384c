"""Recognising an engine by its answers: the conversation, without a network."""

from typing import Any

import pytest

from steersman.engine import Role, Runtime
from steersman_proxy.tablefile.discovery import Finding, NotIdentified, Reply, identify

NOT_FOUND = Reply(404, {"detail": "Not Found"})
SGLANG = {
    "model_path": "/models/qwen",
    "served_model_name": "qwen",
    "weight_version": "default",
    "disaggregation_mode": "null",
}


def talk(answers: dict[str, Any]) -> tuple[Finding, list[str]]:
    """The finding, and the paths that were asked. Paths without an answer are 404."""
    asked = []
    conversation = identify()
    try:
        path = next(conversation)
        while True:
            asked.append(path)
            answer = answers.get(path, NOT_FOUND)
            reply = answer if isinstance(answer, Reply) else Reply(200, answer)
            path = conversation.send(reply)
    except StopIteration as end:
        return end.value, asked


def models(*cards: Any) -> dict[str, Any]:
    return {"object": "list", "data": list(cards)}


def test_sglang() -> None:
    found, asked = talk({"/model_info": SGLANG})

    assert found == Finding(runtime=Runtime.SGLANG, models=("qwen",))
    assert asked == ["/model_info"]


@pytest.mark.parametrize(
    ("said", "version"), [("step-7", "step-7"), (7, "7"), ("", None), (None, None)]
)
def test_sglang_with_a_weight_version(said: object, version: str | None) -> None:
    found, _ = talk({"/model_info": SGLANG | {"weight_version": said}})

    assert found.version == version


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_sglang_with_a_part_of_the_work(mode: str) -> None:
    found, _ = talk({"/model_info": SGLANG | {"disaggregation_mode": mode}})

    assert found.role is Role(mode)


def test_an_older_sglang() -> None:
    """Without /model_info, and without the served name in its answer."""
    found, asked = talk(
        {
            "/get_model_info": {"model_path": "/models/qwen"},
            "/v1/models": models({"id": "qwen"}),
        }
    )

    assert found == Finding(runtime=Runtime.SGLANG, models=("qwen",))
    assert asked == ["/model_info", "/get_model_info", "/v1/models"]


def test_vllm_in_development_mode() -> None:
    found, asked = talk(
        {
            "/version": {"version": "0.32.0"},
            "/v1/models": models({"id": "m"}, {"id": "alias"}, {"id": "lora", "parent": "m"}),
            "/weight_info": {"weight_version": "12"},
        }
    )

    assert found == Finding(runtime=Runtime.VLLM, models=("m", "alias"), version="12")
    assert "/health" not in asked


def test_vllm_without_development_mode_keeps_its_version_to_itself() -> None:
    found, _ = talk({"/version": {"version": "0.32.0"}, "/v1/models": models({"id": "m"})})

    assert found.version is None
    assert found.note == "it does not tell its weight version (VLLM_SERVER_DEV_MODE is off)"


def test_vllm_whose_ranks_disagree() -> None:
    found, _ = talk(
        {
            "/version": {"version": "0.32.0"},
            "/v1/models": models({"id": "m"}),
            "/weight_info": Reply(500),
        }
    )

    assert found.note == "it does not tell its weight version (/weight_info: status 500)"


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({"/model_info": Reply(401)}, "AuthFailed: needs a key (--api-key-file)"),
        ({"/model_info": Reply(403)}, "AuthFailed: needs a key (--api-key-file)"),
        (
            {"/version": {"version": "1"}, "/v1/models": Reply(401)},
            "AuthFailed: needs a key (--api-key-file)",
        ),
        ({"/version": {"version": "1"}, "/v1/models": models()}, "NoModel: /v1/models lists no model (status 200)"),
        ({"/version": {"version": "1"}, "/v1/models": Reply(200, [1])}, "NoModel: /v1/models lists no model (status 200)"),
        ({}, "NotAnEngine: neither /model_info (SGLang) nor /version (vLLM) is answered as expected (last status 404)"),
        ({"/model_info": Reply(200), "/version": Reply(200, "text")}, "NotAnEngine: neither /model_info (SGLang) nor /version (vLLM) is answered as expected (last status 200)"),
    ],
)  # fmt: skip
def test_why_an_engine_is_not_recognised(answers: dict[str, Any], problem: str) -> None:
    with pytest.raises(NotIdentified) as caught:
        talk(answers)

    assert str(caught.value) == problem
