"""The chat template: one plain text turn after another, so that a prefix of turns is a prefix of
tokens and conversations share their cache.
"""

from typing import Any

from steersman_sim.engine.tokens import encode


def content_text(content: Any) -> str:
    """The text of a message: a string, or the text parts of a list.

    Raises:
        ValueError: it is neither.
    """
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            parts: list[str] = []
            for part in content:
                if isinstance(part, str):
                    parts.append(part)
                elif isinstance(part, dict) and isinstance(part.get("text"), str):
                    parts.append(part["text"])
                elif isinstance(part, dict) and "type" in part:
                    parts.append(f"<|{part['type']}|>")
                else:
                    raise ValueError("a content part must be an object with a type")
            return "".join(parts)
        case _:
            raise ValueError("content must be a string or a list of parts")


def render_chat(messages: Any, *, generate: bool = True) -> list[int]:
    """The prompt tokens of a conversation; ``generate`` opens the assistant's turn.

    Raises:
        ValueError: it is no list of messages with a role.
    """
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages must be a list of at least one message")
    parts: list[str] = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError("each message must be an object with a role")
        text = content_text(message.get("content"))
        parts.append(f"<|im_start|>{message['role']}\n{text}<|im_end|>\n")
    if generate:
        parts.append("<|im_start|>assistant\n")
    return encode("".join(parts))


def completion_prompts(prompt: Any) -> list[list[int]]:
    """The prompts of ``/v1/completions``: a text, texts, token ids, or lists of token ids.

    Raises:
        ValueError: it is none of these, or empty.
    """
    if isinstance(prompt, str):
        return [encode(prompt)]
    if not isinstance(prompt, list) or not prompt:
        raise ValueError("prompt must be a string, a list of strings, or token ids")
    if all(type(item) is int for item in prompt):
        return [prompt]
    prompts: list[list[int]] = []
    for item in prompt:
        if isinstance(item, str):
            prompts.append(encode(item))
        elif isinstance(item, list) and item and all(type(token) is int for token in item):
            prompts.append(item)
        else:
            raise ValueError("prompt must be a string, a list of strings, or token ids")
    return prompts
