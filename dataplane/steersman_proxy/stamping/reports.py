"""What an engine's answer says of the weights that made it.

Where engines report (SGLang 0.5.23, vLLM 0.32):

* ``/generate`` of SGLang: ``meta_info.weight_version`` and, once the scheduler has seen a version,
  ``meta_info.weight_versions``, half-open spans of output tokens; one object, or a list for batches;
* chat and completions of SGLang, not streamed: the same two in a top-level ``metadata``;
* ``/inference/v1/generate`` of vLLM: ``choices[].weight_versions``.

The bytes are only read. Nothing here raises on an odd answer: it then reports nothing.
"""

from collections.abc import Iterable, Iterator

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

    @property
    def current(self) -> str | None:
        """The version at the end of the answer; ``None`` if the engine's weights have no name."""
        return reported_version(self.last)

    @property
    def unversioned(self) -> bool:
        """Whether the engine said that its weights have no name (``default``)."""
        return self.last == UNVERSIONED

    def mixed(self, at_dispatch: str | None, *, order: VersionOrder) -> bool:
        """Whether more than one version made the answer.

        Exact where spans are given. Without them the version reported at the end is compared with
        the one known at dispatch (SMG's rule); ``default`` is no version and proves nothing.
        """
        first, *others = self.versions or (None,)
        if first is not None and any(not _same(first, other, order) for other in others):
            return True
        if self.spanned or at_dispatch is None or self.current is None:
            return False
        return not _same(self.current, at_dispatch, order)


NOTHING = Report((), last=None, spanned=False)


class _Item(msgspec.Struct):
    """The members of an answer that may carry a version; everything else is skipped unread."""

    meta_info: msgspec.Raw = msgspec.Raw()
    metadata: msgspec.Raw = msgspec.Raw()
    choices: msgspec.Raw = msgspec.Raw()


class _Meta(msgspec.Struct):
    weight_version: object = None
    weight_versions: object = None


_items = msgspec.json.Decoder(list[_Item])
_item = msgspec.json.Decoder(_Item)
_meta = msgspec.json.Decoder(_Meta)
_choices = msgspec.json.Decoder(list[_Meta])


def read_report(body: bytes | memoryview) -> Report:
    """The report in a JSON answer or in the payload of one SSE event."""
    seen: list[str] = []
    spanned = False
    try:
        items = (
            _items.decode(body) if bytes(body[:64]).lstrip()[:1] == b"[" else [_item.decode(body)]
        )
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
    return Report(versions, last=next(text for text in reversed(seen) if text), spanned=spanned)


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
