"""Each mistake that the nightly mutations make is one that can be made."""

from pathlib import Path

from mutations import MUTATIONS

TESTS = Path(__file__).parent.parent
PACKAGE = TESTS.parent / "flstream"


def test_every_quoted_line_is_there_once_and_so_are_the_tests_that_are_to_find_it():
    for mutation in MUTATIONS:
        assert (PACKAGE / mutation.path).read_text().count(mutation.old) == 1, mutation
        for tests in mutation.tests.split():
            assert (TESTS / tests.partition("::")[0]).exists(), mutation
