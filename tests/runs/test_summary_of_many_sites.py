"""What the summary lists of a fleet, and what it counts."""

from flstream.runs.history import History
from flstream.runs.summary import summarize
from flstream.telemetry.events import SiteFailed


def test_a_thousand_failures_are_listed_and_the_rest_is_counted():
    history = History()
    for number in range(1002):
        history.apply(
            SiteFailed(round=1, site=f"site-{number}", reason="it dropped out", late=True)
        )
    summary = summarize(history)
    assert [failure.site for failure in summary.failures] == [f"site-{n}" for n in range(1000)]
    assert summary.more_failures == 2
    assert '"more_failures": 2' in summary.to_json()
    assert "more_failures" not in summarize(History()).to_json()
