# SPDX-License-Identifier: Apache-2.0
import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imageio_daemon.frontends.http.responses import MAX_FALLBACK, content_disposition
from imageio_daemon.transfers.keys import MAX_FILENAME

#: The grammar of RFC 6266 4.1 and RFC 8187 3.2.1, as far as it is used.
GRAMMAR = re.compile(
    r"attachment(?:; filename=(?:(?P<token>[!#$&+.^_`|~0-9A-Za-z-]+)|\"(?P<quoted>[ !#-\[\]-~]+)\""
    r"(?:; filename\*=UTF-8''(?P<extended>(?:[!#$&+.^_`|~0-9A-Za-z-]|%[0-9A-F]{2})+))?))?"
)


@pytest.mark.parametrize("name", [None, ""])
def test_without_a_name_it_has_none(name: str | None) -> None:
    assert content_disposition(name) == "attachment"


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])))
def test_any_name_is_a_valid_field_that_means_it(name: str) -> None:
    field = content_disposition(name)
    match = GRAMMAR.fullmatch(field)
    assert match is not None
    extended = match["extended"]
    found = match["token"] or match["quoted"] if extended is None else unquote(extended, errors="strict")
    assert (found or "") == name


@pytest.mark.parametrize("name", ["ä" * 1000 + ".raw", '"' * 1000 + ".raw"])
def test_what_older_programs_are_told_is_short_and_keeps_the_suffix(name: str) -> None:
    match = GRAMMAR.fullmatch(content_disposition(name))
    assert match is not None
    assert match["quoted"] == "_" * (MAX_FALLBACK - 4) + ".raw"


@pytest.mark.parametrize(
    "name", ['"' * MAX_FILENAME, "a" * MAX_FILENAME, " " * MAX_FILENAME, "😀" * (MAX_FILENAME // 4)]
)
def test_the_field_leaves_room_in_an_answer_of_a_lane(name: str) -> None:
    assert len(content_disposition(name)) < 3500
