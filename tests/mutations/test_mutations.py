"""The mistakes can be made in the code as it is."""

import ast

import pytest
from mutate import CHECKOUT, mutations


@pytest.mark.parametrize("mutation", mutations(), ids=lambda mutation: mutation.path)
def test_a_mistake_is_one_of_the_code_as_it_is(mutation):
    ast.parse(mutation.applied(CHECKOUT))
    assert all((CHECKOUT / "tests" / each).exists() for each in mutation.tests)
