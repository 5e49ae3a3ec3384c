"""What an engine's answer says of the weights that made it.

Where engines report (SGLang 0.5.23, vLLM 0.32):

* ``/generate`` of SGLang: ``meta_info.weight_version`` and, once the scheduler has seen a version,
  ``meta_info.weight_versions``, half-open spans of output tokens; one object, or a list for batches;
* chat and completions of SGLang, not streamed: the same two in a top-level ``metadata``;
* ``/inference/v1/generate`` of vLLM: ``choices[].weight_versions``.

The bytes are only read. Nothing here raises on an odd answer: it then reports nothing.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

import msgspec

from steersman.versions import UNVERSIONED, Order, VersionOrder, reported_version


class Report(msgspec.Struct, frozen=True):
    """The versions named in one answer or one event."""

    versions: tuple[str, ...]
    """Distinct texts in order of their first appearance; may hold ``default``."""
    last: str | None
    """The text at the end of the answer (of its last item, for a batch)."""
    spanned: bool
    """Whether the engine gave spans, so that the list is exact from the first token to the last."""

    current: str | None
    """The version at the end of the answer; ``None`` if the engine's weights have no name."""

    @property
    def unversioned(self) -> bool:
        """Whether the engine said that its weights have no name (``default``)."""
        return self.last == UNVERSIONED

    def mixed(self, at_dispatch: str | None, *, order: VersionOrder) -> bool:
        """Whether more than one version made the answer.

        Exact where spans are given. Without them the version reported at the end is compared with
        the one known at dispatch (SMG's rule); ``default`` is no version and proves nothing.
        """
        if len(self.versions) == 1 and self.current == at_dispatch:
            return False  # Nearly always, and cheaper than what follows.
        first, *others = self.versions or (None,)
        if first is not None and any(not _same(first, other, order) for other in others):
            return True
        if self.spanned or at_dispatch is None or self.current is None:
            return False
        return not _same(self.current, at_dispatch, order)


NOTHING = Report((), last=None, spanned=False, current=None)


class _Item(msgspec.Struct):
    """The members of an answer that may carry a version; everything else is skipped unread."""

    meta_info: msgspec.Raw = msgspec.Raw()
    metadata: msgspec.Raw = msgspec.Raw()
    choices: msgspec.Raw = msgspec.Raw()


class _Meta(msgspec.Struct):
    weight_version: object = None
    weight_versions: object = None


class _Labelled(msgspec.Struct):
    """The usual answer: one object with one label."""

    meta_info: _Meta | None = None
    metadata: _Meta | None = None


_labelled = msgspec.json.Decoder(_Labelled)
_items = msgspec.json.Decoder(list[_Item])
_item = msgspec.json.Decoder(_Item)
_meta = msgspec.json.Decoder(_Meta)
_choices = msgspec.json.Decoder(list[_Meta])


def read_report(body: bytes) -> Report:
    """The report in a JSON answer or in the payload of one SSE event."""
    at_end = report_at_end(body)
    if at_end is not None:
        return at_end
    if b'"weight_version' not in body:
        # Both members begin so. Finding that costs a tenth of decoding.
        return NOTHING
    if b'"weight_versions"' not in body:
        try:
            answer = _labelled.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _read_all(body)
        meta, other = answer.meta_info, answer.metadata
        if meta is None or other is None:
            meta = meta or other
            version = None if meta is None else meta.weight_version
            if type(version) is str:
                return _one(version)
    return _read_all(body)


def report_at_end(body: bytes, start: int = 0) -> Report | None:
    """The report that a JSON answer ends with, if it does; ``body[start:]`` may be its last part alone."""
    at = body.rfind(b'"meta', max(start, len(body) - _TAIL))
    match = None if at < 0 else _AT_END.match(body, at)
    return None if match is None else _one(match[1].decode())


_TAIL = 256
"""Bytes of an answer's end that are looked at first."""

# SGLang's chat and completions end with their label. In a JSON text the brace at the very end closes
# the outermost object, so that what stands before it is a member of that object; and a quote within
# a text is written with a backslash, so that none of these quotes is. Whatever else the object of
# the member holds, or if its texts are escaped, all is decoded.
_AT_END = re.compile(
    rb'(?<!\\)"(?:metadata|meta_info)"\s*:\s*\{\s*"weight_version"\s*:\s*"([^"\\\x00-\x1f\x80-\xff]*)"'
    rb"\s*\}\s*\}\s*$"
)


@lru_cache(maxsize=1024)
def _one(label: str) -> Report:
    """The report of an answer that names one version. A fleet has a few of them at a time."""
    text = label.strip()
    if not text:
        return NOTHING
    return Report((text,), last=text, spanned=False, current=reported_version(text))


def _read_all(body: bytes) -> Report:
    """The report of an answer of any form."""
    seen: list[str] = []
    spanned = False
    try:
        items = _items.decode(body) if body[:64].lstrip()[:1] == b"[" else [_item.decode(body)]
        for meta in _metas(items):
            spans = list(_spans(meta.weight_versions))
            if spans:
                spanned = True
                seen.extend(spans)
            elif _is_version(meta.weight_version):
                seen.append(str(meta.weight_version).strip())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NOTHING
    versions = tuple(dict.fromkeys(text for text in seen if text))
    if not versions:
        return NOTHING
    last = next(text for text in reversed(seen) if text)
    return Report(versions, last=last, spanned=spanned, current=reported_version(last))


def _metas(items: Iterable[_Item]) -> Iterator[_Meta]:
    for item in items:
        for raw in (item.meta_info, item.metadata):
            if bytes(raw).startswith(b"{"):
                yield _meta.decode(raw)
        if b'"weight_versions"' in bytes(item.choices):
            yield from _choices.decode(item.choices)


def _spans(value: object) -> Iterator[str]:
    """The versions of the spans that cover at least one token, in order."""
    if not isinstance(value, list):
        return
    for entry in value:
        if not isinstance(entry, dict):
            continue
        version = entry.get("version")
        if not _is_version(version):
            continue
        if "start" in entry and entry["start"] == entry.get("end"):
            continue
        yield str(version).strip()


def _is_version(value: object) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _same(left: str, right: str, order: VersionOrder) -> bool:
    return order.compare(left, right) is Order.SAME
