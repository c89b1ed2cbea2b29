"""Every sentence that the troubleshooting page explains is one that the code can say."""

import ast
import re
from pathlib import Path

import pytest

import flstream

ROOT = Path(flstream.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
# Python says these, of code that is not ours.
OTHERS = {"No module named 'nvflare'"}
# What stands for a name or a number: in the code an expression, on the page three dots.
HOLE = "\0"


def literal_text(node: ast.AST) -> str | None:
    """The text of a literal, with a hole for each expression in it."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(literal_part, values))
    return None


def literal_part(value: ast.AST) -> str:
    match value:
        case ast.Constant(value=text):
            return str(text)
        # The plural of a word, where it has one.
        case ast.FormattedValue(value=ast.IfExp(body=ast.Constant(value=text))):
            return str(text)
    return HOLE


def texts() -> list[str]:
    trees = (ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py")))
    return [
        text
        for tree in trees
        for node in ast.walk(tree)
        if (text := literal_text(node)) is not None
    ]


TEXTS = texts()
SYMPTOMS = re.findall(r"^### `(.*)`$", PAGE.read_text(), flags=re.MULTILINE)


def fragments(symptom: str) -> list[str]:
    """What is fixed in a sentence, between its names and numbers."""
    parts = (part.strip(" :;,()") for part in symptom.split("..."))
    return [part for part in parts if len(part) > 3]


@pytest.mark.parametrize("symptom", [each for each in SYMPTOMS if each not in OTHERS])
def test_the_code_says_what_the_page_explains(symptom: str) -> None:
    # A sentence may be put together of several literals, but each of its parts is in one of them.
    for part in fragments(symptom):
        assert any(part in text for text in TEXTS), part


def test_the_page_explains_sentences_and_not_nothing() -> None:
    assert len(SYMPTOMS) > 30
    assert set(SYMPTOMS) >= OTHERS


def test_no_heading_of_the_page_stands_there_twice() -> None:
    headings = re.findall(r"^#+ (.*)$", PAGE.read_text(), flags=re.MULTILINE)
    assert len(headings) == len(set(headings))
