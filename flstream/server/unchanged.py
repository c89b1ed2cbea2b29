"""Sites that have sent back what they received."""

from __future__ import annotations

from collections.abc import Sequence

from flstream.server.sampling import brief_names


class UnchangedUpdates:
    """Remembers which sites have sent the model that they received, to tell of each once."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def warnings(self, round_number: int, sites: Sequence[str]) -> Sequence[str]:
        """Return a sentence on those of some sites of which it was not known yet; none without any.

        Args:
            round_number: Number of the current round.
            sites: Sites whose updates are the model that they received.
        """
        new = [site for site in sites if site not in self._known]
        self._known.update(new)
        if not new:
            return []
        whose = f"update of {new[0]} is" if len(new) == 1 else f"updates of {brief_names(new)} are"
        return [
            f"in round {round_number}, the {whose} equal to the model that was received, so "
            "nothing was trained; a trainer may count its epochs from round to round, or an "
            "optimizer hold the parameters of another module"
        ]
