"""JSON of which every statement counts: no key may stand in an object twice."""

from __future__ import annotations

import json


def decode_json(text: bytes | str) -> object:
    """Decode JSON, in which no object may have a key twice.

    Raises:
        ValueError: The text is not such JSON; the message says why, without naming the file.
    """
    try:
        return json.loads(
            text.decode() if isinstance(text, bytes) else text,
            object_pairs_hook=_refuse_duplicates,
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from error
    except ValueError as error:
        # Python's advice, to raise its limit for the digits of a number, would be wrong here.
        raise ValueError(str(error).partition(";")[0]) from error


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the name {name!r} stands there twice")
            seen.add(name)
    return fields
