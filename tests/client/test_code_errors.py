"""Whatever training code raises, a sentence says so."""

from pathlib import Path

import pytest

from flstream.client.code_errors import sentence


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("two\nlines"), "client.py raised ValueError: two lines"),
        (ValueError("half \ud800"), r"client.py raised ValueError: half \ud800"),
        (MuteError(), "client.py raised MuteError"),
    ],
)
def test_an_exception_that_cannot_be_printed_or_sent_has_a_sentence_all_the_same(error, words):
    found = sentence(error, Path("client.py"))
    assert found == words
    assert found.encode()
