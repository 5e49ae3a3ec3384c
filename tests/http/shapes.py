"""Requests with more than one reading, or none: each as bytes, with what it has to be answered."""

from typing import NamedTuple

from steersman.errors import Fault

LINE = b"POST /generate HTTP/1.1\r\n"
HOST = b"Host: proxy\r\n"
SMUGGLED = b"POST /v1/completions HTTP/1.1\r\nHost: proxy\r\nContent-Length: 2\r\n\r\n[]"
"""What an attacker would like to be taken for a request of its own."""


class Refused(NamedTuple):
    """A shape, and how it is refused."""

    sent: bytes
    fault: Fault
    status: int = 400


def head(*lines: bytes, line: bytes = LINE, host: bytes = HOST, body: bytes = b"{}") -> bytes:
    """A request with these header lines."""
    return line + host + b"".join(one + b"\r\n" for one in lines) + b"\r\n" + body


def targeted(target: bytes, *, method: bytes = b"POST", version: bytes = b"HTTP/1.1") -> bytes:
    """A request with a body of two bytes for this target."""
    return head(b"Content-Length: 2", line=b"%b %b %b\r\n" % (method, target, version))


def _each(fault: Fault, status: int = 400, **sent: bytes) -> dict[str, Refused]:
    return {name.replace("_", " "): Refused(data, fault, status) for name, data in sent.items()}


CHUNKED = b"Transfer-Encoding: chunked"
TWO = b"Content-Length: 2"
ENDED = b"0\r\n\r\n"

LENGTHS = _each(
    Fault.LENGTH,
    two_lengths_of_one_value=head(TWO, TWO),
    two_lengths_of_two_values=head(TWO, b"Content-Length: 3"),
    two_lengths_in_two_cases=head(TWO, b"content-length: 2"),
    a_list_of_lengths=head(b"Content-Length: 2, 2"),
    a_length_with_plus=head(b"Content-Length: +2"),
    a_length_with_minus=head(b"Content-Length: -2"),
    a_length_in_hex=head(b"Content-Length: 0x2"),
    a_length_with_a_fraction=head(b"Content-Length: 2.0"),
    a_length_with_underscore=head(b"Content-Length: 1_0"),
    a_length_in_two_words=head(b"Content-Length: 2 2"),
    an_empty_length=head(b"Content-Length:"),
    a_length_of_20_digits=head(b"Content-Length: 18446744073709551618"),
    a_length_of_30_digits=head(b"Content-Length: " + b"0" * 29 + b"2"),
    digits_that_are_not_ascii=head("Content-Length: ²".encode("latin-1")),
)

CODINGS = _each(
    Fault.CODING,
    length_then_coding=head(TWO, CHUNKED, body=ENDED + SMUGGLED),
    coding_then_length=head(CHUNKED, TWO, body=ENDED + SMUGGLED),
    length_zero_and_coding=head(b"Content-Length: 0", CHUNKED, body=ENDED),
    length_and_identity=head(TWO, b"Transfer-Encoding: identity"),
    two_codings=head(CHUNKED, CHUNKED, body=ENDED),
    two_codings_one_unknown=head(CHUNKED, b"Transfer-Encoding: x", body=ENDED + SMUGGLED),
    chunked_then_identity=head(b"Transfer-Encoding: chunked, identity", body=ENDED),
    gzip_then_chunked=head(b"Transfer-Encoding: gzip, chunked", body=ENDED),
    chunked_twice=head(b"Transfer-Encoding: chunked, chunked", body=ENDED),
    identity=head(b"Transfer-Encoding: identity", body=ENDED),
    an_unknown_coding=head(b"Transfer-Encoding: xchunked", body=ENDED),
    a_quoted_coding=head(b'Transfer-Encoding: "chunked"', body=ENDED),
    a_coding_with_a_parameter=head(b"Transfer-Encoding: chunked;q=1", body=ENDED),
    a_coding_with_a_comma=head(b"Transfer-Encoding: chunked,", body=ENDED),
    a_coding_before_a_tab=head(b"Transfer-Encoding: chunked\t", body=ENDED + SMUGGLED),
    a_coding_after_a_tab=head(b"Transfer-Encoding:\tchunked", body=ENDED + SMUGGLED),
    an_empty_coding=head(b"Transfer-Encoding:", body=ENDED),
    a_coding_that_is_not_ascii=head("Transfer-Encoding: chunkeÐ".encode("latin-1"), body=ENDED),
    a_coding_in_http_1_0=head(CHUNKED, line=LINE.replace(b"1.1", b"1.0"), body=ENDED),
)

HEADERS = _each(
    Fault.HEADER,
    a_space_before_the_colon=head(b"Transfer-Encoding : chunked", TWO, body=ENDED),
    a_tab_before_the_colon=head(b"Transfer-Encoding\t: chunked", TWO, body=ENDED),
    a_coding_with_a_vertical_tab=head(b"Transfer-Encoding: chunked\x0b", body=ENDED),
    a_coding_after_a_vertical_tab=head(b"Transfer-Encoding: \x0bchunked", body=ENDED),
    a_length_after_a_form_feed=head(b"Content-Length: \x0c2"),
    a_folded_header=head(b"X: a\r\n b", TWO),
    a_folded_header_by_tab=head(b"X: a\r\n\tb", TWO),
    a_folded_coding=head(b"Transfer-Encoding:\r\n chunked", body=ENDED),
    a_first_header_that_is_folded=head(TWO, host=b" X: a\r\n" + HOST),
    a_nul_in_a_value=head(b"X: a\0b", TWO),
    a_control_byte_in_a_value=head(b"X: a\x01b", TWO),
    an_escape_in_a_value=head(b"X: a\x1b[2J", TWO),
    a_delete_in_a_value=head(b"X: a\x7fb", TWO),
    a_name_with_a_parenthesis=head(b"X(: a", TWO),
    a_name_with_a_space=head(b"X Y: a", TWO),
    a_name_with_a_quote=head(b'"X": a', TWO),
    a_name_that_is_not_ascii=head(b"X\x80: a", TWO),
    a_name_with_a_nul=head(b"X\0: a", TWO),
    an_empty_name=head(b": a", TWO),
    no_colon=head(b"abc", TWO),
    a_second_request_line=head(b"GET /health HTTP/1.1", TWO),
    a_second_content_type=head(b"Content-Type: a", b"Content-Type: b", CHUNKED, body=ENDED),
    a_second_expectation=head(b"Expect: 100-continue", b"Expect: 100-continue", TWO),
    lf_alone_after_a_header=head(TWO, host=b"Host: proxy\n"),
    lf_alone_as_the_empty_line=LINE + HOST + b"Content-Length: 2\r\n\n{}",
    lf_alone_twice_at_the_end=LINE + HOST + b"Content-Length: 2\n\n{}",
    lf_in_a_value=head(b"X: a\nTransfer-Encoding: chunked", TWO, body=ENDED),
    cr_in_a_value=head(b"X: a\rb", TWO),
    cr_in_place_of_a_line_end=head(b"X: a\rTransfer-Encoding: chunked", TWO, body=ENDED),
    two_crs_before_lf=head(b"X: a\r", TWO),
)

HOSTS = _each(
    Fault.HOST,
    no_host=head(TWO, host=b""),
    two_hosts=head(b"Host: other", TWO),
    two_equal_hosts=head(b"Host: proxy", TWO),
    an_empty_host=head(TWO, host=b"Host:\r\n"),
    a_host_with_a_space=head(TWO, host=b"Host: a b\r\n"),
    a_host_with_a_path=head(TWO, host=b"Host: a/b\r\n"),
    a_host_with_a_user=head(TWO, host=b"Host: u@b\r\n"),
    a_list_of_hosts=head(TWO, host=b"Host: a, b\r\n"),
    a_host_with_a_word_for_port=head(TWO, host=b"Host: a:http\r\n"),
    a_host_with_a_long_port=head(TWO, host=b"Host: a:123456\r\n"),
    a_host_that_is_not_ascii=head(TWO, host=b"Host: \xc3\xa9\r\n"),
    a_bare_address_of_ipv6=head(TWO, host=b"Host: ::1\r\n"),
    a_bad_host_in_http_1_0=head(TWO, line=LINE.replace(b"1.1", b"1.0"), host=b"Host: a b\r\n"),
)

LINES = _each(
    Fault.REQUEST_LINE,
    garbage=b"GARBAGE\r\n\r\n",
    http_0_9=b"GET /liveness\r\n",
    a_version_in_lower_case=targeted(b"/generate", version=b"http/1.1"),
    a_version_of_two_digits=targeted(b"/generate", version=b"HTTP/1.10"),
    a_version_without_minor=targeted(b"/generate", version=b"HTTP/1"),
    rtsp=targeted(b"/generate", version=b"RTSP/1.0"),
    icecast=targeted(b"/generate", version=b"ICE/1.0"),
    two_spaces_before_the_target=targeted(b" /generate"),
    two_spaces_after_the_target=targeted(b"/generate "),
    a_space_after_the_version=targeted(b"/generate", version=b"HTTP/1.1 "),
    a_space_before_the_method=targeted(b"/generate", method=b" POST"),
    tabs=head(TWO, line=b"POST\t/generate\tHTTP/1.1\r\n"),
    no_target=head(TWO, line=b"POST HTTP/1.1\r\n"),
    no_method=head(TWO, line=b"/generate HTTP/1.1\r\n"),
    a_space_in_the_target=targeted(b"/generate?a b"),
    a_control_byte_in_the_target=targeted(b"/generate?a\x01b"),
    a_delete_in_the_target=targeted(b"/generate?a\x7fb"),
    utf_8_in_the_target=targeted(b"/generate?\xc3\xa9"),
    latin_1_in_the_target=targeted(b"/generate?\xe9"),
    a_fragment=targeted(b"/generate#a"),
    a_fragment_after_a_query=targeted(b"/generate?a#b"),
    a_target_without_slash=targeted(b"generate"),
    a_target_of_another_scheme=targeted(b"ftp://proxy/generate"),
    a_url_with_a_password=targeted(b"http://u:p@proxy/generate"),
    a_url_without_host=targeted(b"http:///generate"),
    a_url_with_a_fragment=targeted(b"http://proxy/generate#a"),
    the_asterisk_of_options=targeted(b"*"),
    a_method_with_a_parenthesis=targeted(b"/generate", method=b"PO(ST"),
    lf_alone_before_it=b"\n" + head(TWO),
    two_empty_lines_before_it=b"\r\n\r\n" + head(TWO),
    lf_alone_in_all_lines=head(TWO).replace(b"\r\n", b"\n"),
    cr_alone_after_it=head(TWO, line=LINE.replace(b"\n", b"")),
    nothing_but_a_space=b" ",
    a_greeting_of_ssh=b"SSH-2.0-OpenSSH_9.2\r\n",
)

OTHERS = {
    **_each(
        Fault.TLS,
        tls=b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
        the_beginning_of_tls=b"\x16\x03\x01",
    ),
    **_each(
        Fault.VERSION,
        505,
        http_2_with_prior_knowledge=b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        http_2=targeted(b"/generate", version=b"HTTP/2.0"),
        http_1_2=targeted(b"/generate", version=b"HTTP/1.2"),
        http_0_9_by_name=targeted(b"/generate", version=b"HTTP/0.9"),
        http_9_9=targeted(b"/generate", version=b"HTTP/9.9"),
    ),
    **_each(
        Fault.METHOD,
        501,
        connect=b"CONNECT proxy:443 HTTP/1.1\r\nHost: proxy:443\r\n\r\n",
        a_method_in_lower_case=targeted(b"/generate", method=b"post"),
        an_unknown_method=targeted(b"/generate", method=b"FOO"),
        trace=targeted(b"/generate", method=b"TRACE"),
        a_method_of_icecast=targeted(b"/generate", method=b"SOURCE"),
    ),
    **_each(
        Fault.EXPECTATION,
        417,
        an_unknown_expectation=head(b"Expect: 200-ok", TWO),
        two_expectations_in_one=head(b"Expect: 100-continue, more", TWO),
        an_empty_expectation=head(b"Expect:", TWO),
    ),
    **_each(
        Fault.SIZE,
        431,
        a_header_of_70_kb=head(b"X: " + b"x" * 70_000, TWO),
        a_name_of_70_kb=head(b"X" * 70_000 + b": a", TWO),
        a_head_of_70_kb=head(*[b"X%d: " % index + b"x" * 1000 for index in range(70)], TWO),
        a_header_of_70_kb_without_end=LINE + HOST + b"X: " + b"x" * 70_000,
        too_many_headers=head(*[b"X%d: a" % index for index in range(255)], TWO),
    ),
    **_each(
        Fault.SIZE,
        414,
        a_target_of_70_kb=targeted(b"/" + b"x" * 70_000),
        a_target_of_70_kb_without_end=b"POST /" + b"x" * 70_000,
    ),
}

HEADS = {**LENGTHS, **CODINGS, **HEADERS, **HOSTS, **LINES, **OTHERS}
"""Every head that is refused."""


def chunks(framed: bytes) -> bytes:
    """A request whose chunked body is ``framed`` like this."""
    return head(CHUNKED, body=framed)


BODIES: dict[str, bytes] = {
    "a size that is not hex": b"zz\r\n{}\r\n0\r\n\r\n",
    "an empty size": b"\r\n{}\r\n0\r\n\r\n",
    "a negative size": b"-2\r\n{}\r\n0\r\n\r\n",
    "a size with plus": b"+2\r\n{}\r\n0\r\n\r\n",
    "a size with 0x": b"0x2\r\n{}\r\n0\r\n\r\n",
    "a size with underscore": b"0_2\r\n{}\r\n0\r\n\r\n",
    "a size beyond 64 bits": b"10000000000000002\r\n{}\r\n0\r\n\r\n",
    "a size of many zeros": b"0" * 30 + b"2\r\n{}\r\n0\r\n\r\n",
    "a space after a size": b"2 \r\n{}\r\n0\r\n\r\n",
    "a space before a size": b" 2\r\n{}\r\n0\r\n\r\n",
    "lf alone after a size": b"2\n{}\r\n0\r\n\r\n",
    "cr alone after a size": b"2\r{}\r\n0\r\n\r\n",
    "no line end after a chunk": b"2\r\n{}0\r\n\r\n",
    "lf alone after a chunk": b"2\r\n{}\n0\r\n\r\n",
    "a chunk longer than its size": b"2\r\n{}}\r\n0\r\n\r\n",
    "a chunk shorter than its size": b"3\r\n{}\r\n0\r\n\r\n",
    "lf alone after the last size": b"2\r\n{}\r\n0\n\r\n",
    "lf alone as the last line": b"2\r\n{}\r\n0\r\n\n",
    "lf in an extension": b"2;a\nb\r\n{}\r\n0\r\n\r\n",
    "cr in an extension": b"2;a\rb\r\n{}\r\n0\r\n\r\n",
    "a control byte in an extension": b"2;a\x01b\r\n{}\r\n0\r\n\r\n",
    "an extension of 300 bytes": b"2;a=" + b"x" * 300 + b"\r\n{}\r\n0\r\n\r\n",
    "an extension without end": b"2;a=" + b"x" * 300,
    "a trailer with a space in its name": b"2\r\n{}\r\n0\r\nX T: 1\r\n\r\n",
    "a trailer without colon": b"2\r\n{}\r\n0\r\nXT\r\n\r\n",
    "a trailer that ends with lf alone": b"2\r\n{}\r\n0\r\nXT: 1\n\r\n",
    "a folded trailer": b"2\r\n{}\r\n0\r\nXT: 1\r\n b\r\n\r\n",
    "a nul in a trailer": b"2\r\n{}\r\n0\r\nXT: a\0\r\n\r\n",
    "trailers of 9 kB": b"2\r\n{}\r\n0\r\n" + b"XT: %b\r\n" % (b"x" * 1000) * 9 + b"\r\n",
    "a trailer of 9 kB without end": b"2\r\n{}\r\n0\r\nXT: " + b"x" * 9000,
    "a request in place of a chunk": SMUGGLED,
}
"""Chunked bodies that are refused, by what is wrong with them."""
