"""What holds for every command: help, versions, mistakes, imports, completion in a shell."""

import pytest

import flstream as package

COMMANDS = ("simulate", "bench", "inspect", "init", "validate", "report")


def test_help_lists_the_commands_within_80_columns(flstream_here):
    done = flstream_here("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in COMMANDS)
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert flstream_here("--version").stdout == f"flstream {package.__version__}\n"


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "job.conf", "--bogus"),
        ("simulate",),
        ("simulate", "no-such-job.conf"),
        ("simulate", "."),
        ("inspect", "no-such-file"),
        ("bench",),
        ("no-such-command",),
    ],
)
def test_a_wrong_request_exits_2_with_a_message_and_no_traceback(refused, words):
    assert refused(*words)
