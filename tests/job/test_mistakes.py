"""Every mistake in a job file is named, in one message."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from pyparsing import ParserElement

from flstream.errors import UsageError
from flstream.job import JobError, load_job
from flstream.workflows.registry import BUILT_IN

Write = Callable[..., Path]


def message(path: Path, *overrides: str) -> str:
    """Return the text of the error that a job file gives."""
    with pytest.raises(JobError) as caught:
        load_job(path, overrides)
    return str(caught.value)


def lines(path: Path, *overrides: str) -> list[str]:
    """Return the mistakes of a job file, a line each."""
    return [line.strip() for line in message(path, *overrides).splitlines()[1:]]


def test_five_mistakes_are_named_in_one_message(write: Write, folder: Path) -> None:
    path = write(
        """
        name = digits
        rounds = ten
        clients { cuont = 8 }
        model { factory = "model:build" }
        train { script = clinet.py }
        workflow { type = fedavgg }
        streaming { tensor_download_chunk_size = -2 MiB }
        """,
        base="",
    )
    assert message(path) == "\n".join(
        [
            f"{path} has 5 mistakes:",
            '  rounds: given "ten"; must be a whole number of at least 1',
            "  clients.cuont: unknown key; did you mean clients.count?",
            '  train.script: given "clinet.py"; must be the path of an existing Python file; '
            f"there is no {folder}/clinet.py; did you mean client.py?",
            f'  workflow.type: given "fedavgg"; must be {", ".join(BUILT_IN)}, '
            "path/to/file.py:function or module:function; did you mean fedavg?",
            '  streaming.tensor_download_chunk_size: given "-2 MiB"; must be 0 (streaming off) or '
            "a multiple of 16 bytes from 16 B to 1 GiB, or auto; write a size such as 2097152, "
            "2 MiB or 2 MB",
        ]
    )


def test_the_mistakes_are_there_as_records_and_survive_pickling(write: Write) -> None:
    with pytest.raises(UsageError) as caught:
        load_job(write("sead = 1, seed = -1"))
    error = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error, JobError)
    assert {problem.key: problem.given for problem in error.problems} == {
        "sead": "unknown key",
        "seed": "given -1",
    }


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("clients.cuont = 1", "clients.cuont: unknown key; did you mean clients.count?"),
        ("request_size = 1", "request_size: unknown key; did you mean streaming.request_size?"),
        (
            "chunk_size = 1",
            "chunk_size: unknown key; did you mean streaming.tensor_download_chunk_size or "
            "streaming.np_download_chunk_size?",
        ),
        ("client { count = 1 }", "client: unknown key; did you mean clients?"),
        ("workflow.key_metric = a", "workflow.key_metric: unknown key; did you mean "
         "workflow.args.key_metric?"),
        ("zebra = 1", "zebra: unknown key"),
        ("folder = x", "folder: unknown key; did you mean filters?"),
    ],
)  # fmt: skip
def test_a_misspelt_or_misplaced_key_names_the_nearest_one(
    write: Write, text: str, question: str
) -> None:
    assert lines(write(text)) == [question]


def test_a_misspelt_required_key_or_section_is_not_also_reported_missing(write: Write) -> None:
    base = 'name = a, model.factory = "model:build", train.script = client.py'
    assert lines(write("\nruonds = 1, client { count = 3 }", base)) == [
        "ruonds: unknown key; did you mean rounds?",
        "client: unknown key; did you mean clients?",
    ]


def test_everything_an_empty_file_lacks_is_named(write: Write) -> None:
    keys = [line.partition(":")[0] for line in lines(write("", base=""))]
    assert keys == ["name", "rounds", "clients.count", "model.factory", "train.script"]


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("rounds = true", "rounds: given true; must be a whole number of at least 1"),
        ("rounds = 2.5", "rounds: given 2.5; must be a whole number of at least 1"),
        (
            "rounds = 100000000000000000000",
            "rounds: given 100000000000000000000; must be a whole number of at least 1; 1000000000 "
            "is most",
        ),
        (
            "clients.round_timeout = 1e300",
            "clients.round_timeout: given 1e+300; must be a duration such as 600 s, 500 ms, 10 "
            "minutes or 600 (seconds), longer than 0; 10000000000 s is most",
        ),
        (
            "clients.threads = 2000",
            "clients.threads: given 2000; must be a whole number from 1 to 1024",
        ),
        ("rounds = null", "rounds: given null; must be a whole number of at least 1"),
        ("clients.count = 0", "clients.count: given 0; must be a whole number from 1 to 1000000"),
        ("clients.per_round = 9", "clients.per_round: given 9; must be at most clients.count, "
         "which is 8"),
        ("clients.per_round = 0", "clients.per_round: given 0; must be a whole number of at "
         "least 1, or a fraction above 0 and up to 1.0 (all)"),
        ("clients.per_round = 1.5", "clients.per_round: given 1.5; must be a whole number of at "
         "least 1, or a fraction above 0 and up to 1.0 (all)"),
        ("clients = 8", "clients: given 8; must be a section { names, count, args, parallel, "
         "per_round, threads, gpus, min_updates, round_timeout, wait_after_min, bench_after }"),
        ("clients.round_timeout = 0 s", 'clients.round_timeout: given "0 s"; must be a duration '
         "such as 600 s, 500 ms, 10 minutes or 600 (seconds), longer than 0"),
        ("streaming.np_download_chunk_size = 4100", "streaming.np_download_chunk_size: given "
         "4100; must be 0 (streaming off) or a multiple of 16 bytes from 16 B to 1 GiB, or auto; "
         "nearest: 4096 or 4112"),
        ("streaming.mode = Pull", 'streaming.mode: given "Pull"; must be one of pull, push, '
         "native, map; did you mean pull?"),
        ("aggregation.memory_budget = 1 KiB", 'aggregation.memory_budget: given "1 KiB"; must be '
         "a size of at least 1 MiB"),
        ("aggregation.method = Krum", 'aggregation.method: given "Krum"; must be mean, median, '
         "trimmed_mean, krum, multi_krum, bulyan, geometric_median, norm_bounded_mean, "
         "path/to/file.py:Class or module:Class; did you mean krum?"),
        ("aggregation.trim = 0.5", "aggregation.trim: given 0.5; must be a number of at least 0 "
         "and below 0.5"),
        ("aggregation.clip_norm = 0", "aggregation.clip_norm: given 0; must be a number above "
         "0, or median"),
        ("aggregation.clip_norm = true", "aggregation.clip_norm: given true; must be a number "
         "above 0, or median"),
        ('aggregation.exclude = ["a", "(b"]', 'aggregation.exclude: given "(b"; must be a list of '
         "regular expressions; it does not parse: missing ), unterminated subpattern at "
         "position 0"),
        ("aggregation.include = []", "aggregation.include: given []; must be a list of regular "
         "expressions, at least 1"),
        ("aggregation.include = head", 'aggregation.include: given "head"; must be a list of '
         'regular expressions, at least 1; write ["first", "second"]'),
        ("server_optimizer.type = adam", 'server_optimizer.type: given "adam"; must be one of '
         "none, fedavgm, fedadagrad, fedadam, fedyogi; did you mean fedadam?"),
        ("server_optimizer.beta_2 = 1", "server_optimizer.beta_2: given 1; must be a number of at "
         "least 0 and below 1"),
        ("server_optimizer.learning_rate = 1e999", "server_optimizer.learning_rate: given "
         "Infinity; must be a number above 0"),
        ("name = ../up", 'name: given "../up"; must be at most 100 letters, digits, . _ and -, a '
         "letter or digit first"),
        ("name = größe", 'name: given "größe"; must be at most 100 letters, digits, . _ and -, a '
         "letter or digit first; ö is none of the letters a to z and A to Z"),
        ("clients { names = [café] }", 'clients.names: given ["café"]; must be a list of names of '
         "letters, digits, '.', '_' and '-', each of them once; é is none of the letters a to z "
         "and A to Z"),
        ("seed = 18446744073709551616", "seed: given 18446744073709551616; must be a whole number "
         "from 0 to 18446744073709551615"),
        ("model.args = 3", "model.args: given 3; must be a section of keys and plain values"),
        ("train.args { a b = 1 }", 'train.args: key "a b"; must be letters, digits, _ and -'),
        ("train.args { a = [1e999] }", "train.args.a: given Infinity; must be a finite number"),
        ("model.factory = null", "model.factory: missing; must be module:callable or "
         "path/to/file.py:callable, unless model.initial is given"),
        ("model.factory = model", 'model.factory: given "model"; must be module:callable or '
         "path/to/file.py:callable"),
    ],
)  # fmt: skip
def test_a_value_that_is_not_allowed_is_answered_with_what_is(
    write: Write, text: str, mistake: str
) -> None:
    assert lines(write(text)) == [mistake]


def test_arguments_of_an_unknown_workflow_are_not_judged(write: Write) -> None:
    [line] = lines(write("workflow { type = gossip, args { peers = 3 } }"))
    assert line == (
        f'workflow.type: given "gossip"; must be {", ".join(BUILT_IN)}, '
        "path/to/file.py:function or module:function"
    )


def test_a_factory_that_is_nowhere_names_both_places_looked(write: Write, folder: Path) -> None:
    [line] = lines(write("model.factory = modell:build"))
    assert f"looked for {folder}/modell.py and for an installed module modell" in line
    assert line.endswith("did you mean model?")


def test_a_callable_that_is_not_in_the_module_names_the_nearest(write: Write) -> None:
    [line] = lines(write("model.factory = model:biuld"))
    assert line.endswith("did you mean build?")


def test_python_that_does_not_parse_is_a_mistake_with_its_line(write: Write, folder: Path) -> None:
    (folder / "client.py").write_text("x = 1\ndef (:\n")
    (folder / "model.py").write_text("\n\nbuild = = 1\n")
    factory, script = lines(write())
    assert f"must be Python that parses; {folder}/model.py line 3:" in factory
    assert f"must be Python that parses; {folder}/client.py line 2:" in script


def test_initial_weights_must_be_an_existing_checkpoint(write: Write, folder: Path) -> None:
    (folder / "w.h5").touch()
    for path in ("w.h5", "none.safetensors", "."):
        [line] = lines(write(f"model.initial = {path}"))
        kinds = ".safetensors, .pt, .pth, .bin, .npz or .json"
        assert f"must be the path of an existing {kinds} file" in line


def test_a_flag_is_true_or_false(write: Write) -> None:
    [line] = lines(write("model.strict = 1"))
    assert "model.strict: given 1; must be true or false" in line


def test_overrides_go_through_the_same_checks(write: Write) -> None:
    found = lines(write(), "clients.count=x", "foo", "seed=[1", "strem.window=1", "=3")
    assert [line.partition(":")[0] for line in found] == [
        "override",
        "seed",
        "override",
        "clients.count",
        "strem",
    ]
    assert 'given "foo"; must be key=value, such as clients.count=4' in found[0]


def test_an_override_that_is_more_than_one_value_is_refused(write: Write) -> None:
    [line] = lines(write(), "model.args={a = 1}, rounds = 5")
    assert line.endswith("must be a HOCON value; it is more than one value")


def test_every_unresolved_substitution_is_named_with_its_key(write: Write) -> None:
    text = "rounds = ${NO_ROUNDS}, train.args.x = [a${NO_X}], clients.count = -1"
    found = lines(write(text))
    assert len(found) == 3
    assert found[0].startswith("rounds: ${NO_ROUNDS} is set neither in the file nor in the")
    assert found[1].startswith("train.args.x: ${NO_X} is set neither")
    assert found[2].startswith("clients.count: given -1")


def test_an_unresolved_section_is_named_alone(write: Write) -> None:
    assert "${NO_BASE} is set neither" in message(write("clients = ${NO_BASE} { count = 3 }"))


def test_a_missing_include_is_a_mistake_and_what_it_might_hold_is_not(
    write: Write, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write('include "more.conf"\nseed = -1', base="")
    include, seed = lines(path)
    assert include == f'include: given "{folder}/more.conf"; must be an existing file'
    assert seed.startswith("seed: given -1")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("pattern", ["part*.conf", "part?.conf"])
def test_a_pattern_that_includes_nothing_is_a_mistake(write: Write, pattern: str) -> None:
    assert "must be an existing file" in message(write(f'include "{pattern}"'))


def test_a_url_is_not_included(write: Write) -> None:
    text = message(write('include "http://localhost:1/x.conf"'))
    assert "must be a file, not a URL" in text


def test_a_file_that_includes_itself_is_a_mistake(write: Write) -> None:
    path = write('include "job.conf"')
    assert message(path) == f"{path}: {path} includes itself"


@pytest.mark.parametrize("value", ["3", "[3]", '"x"'])
def test_appending_with_plus_equals_is_refused_by_name(write: Write, value: str) -> None:
    [line] = lines(write(f"train.args.a = [1, 2]\ntrain.args.a += {value}"))
    assert line == ("train.args.a: += is not supported; must be one whole value, such as [1, 2, 3]")


def test_plus_equals_inside_a_text_or_comment_is_nothing(write: Write) -> None:
    assert load_job(write('train.args.a = "x += 3" # b += 4')).train.args == {"a": "x += 3"}


@pytest.mark.parametrize("text", ["clients {", "seed = }", "seed = 1\nrounds\n", 'a = "x\n'])
def test_a_syntax_error_is_one_sentence_with_a_line(write: Write, text: str) -> None:
    path = write(text, base="")
    assert "\n" not in message(path)
    assert f"{path}: syntax error at or just before line" in message(path)


def test_a_syntax_error_leaves_other_parsers_as_they_were(write: Write) -> None:
    before = ParserElement.DEFAULT_WHITE_CHARS
    message(write("clients {"))
    assert before == ParserElement.DEFAULT_WHITE_CHARS


def test_a_syntax_error_in_an_included_file_names_that_file(write: Write, folder: Path) -> None:
    (folder / "more.conf").write_text("seed = }")
    assert f"of {folder}/more.conf" in message(write('include "more.conf"'))


def test_a_job_file_that_is_not_there_or_a_folder_or_not_text_is_a_sentence(
    write: Write, folder: Path
) -> None:
    assert message(folder / "no.conf").endswith("there is no such job file; check the path")
    assert message(folder).endswith("is a folder; give the path of the job file in it")
    path = write()
    path.write_bytes(b"name = \xff")
    assert message(path).endswith("is not UTF-8 text (byte 7)")
    path.write_text("[1, 2]")
    assert message(path).endswith("the file holds a list; write key = value lines")


def test_a_cycle_of_substitutions_is_a_mistake(write: Write) -> None:
    assert "Check for cycles" in message(write("seed = ${seed}"))


YAML = """
name: mini
rounds: 2
clients:
  # of one ward
  count: 2
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [(YAML, "clients:"), ("---\nsites:\n  - a\n  - b\n", "sites:"), ("a:\n- 1\n", "a:")],
)
def test_yaml_is_called_yaml(write: Write, folder: Path, text: str, line: str) -> None:
    said = message(write(text, base=""))
    assert said == (
        f"{folder}/job.conf: `{line}` is YAML; a job file is HOCON: clients {{ count = 2 }}"
    )


def test_what_only_looks_like_yaml_is_read(write: Write) -> None:
    job = load_job(write('train.args { note = """\na:\n  b: 1\n""", other:\n  3 }'))
    assert job.train.args == {"note": "\na:\n  b: 1\n", "other": 3}


def test_a_large_file_is_refused_unread(write: Write, folder: Path) -> None:
    said = message(write("#" * (1 << 20)))
    assert said == (
        f"{folder}/job.conf: {folder}/job.conf has more than 1 MiB, which no job file has; "
        "check the path"
    )


def test_a_syntax_error_quotes_the_start_of_a_long_line(write: Write) -> None:
    assert len(message(write("x = [" + "1, " * 10_000))) < 400


def test_a_linked_job_file_lies_where_the_link_leads(
    write: Write, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (folder / "more.conf").write_text("seed = 3\n")
    link = tmp_path_factory.mktemp("links") / "linked.conf"
    link.symlink_to(write('include "more.conf"\n'))
    job = load_job(link)
    assert (job.folder, job.seed) == (folder, 3)
    assert job.train.script == folder / "client.py"
