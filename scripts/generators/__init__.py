"""Generators of documentation pages: each module has ``pages() -> Mapping[str, str]``.

Keys are paths below ``docs/``, values are Markdown without the notice, which
:mod:`scripts.gen_docs` adds.
"""
