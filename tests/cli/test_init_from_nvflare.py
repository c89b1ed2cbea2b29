"""`flstream init --from-nvflare` writes a job, lists each setting, and refuses what it must."""

import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from cli_support import Flstream

SERVER, CLIENT = "app/config/config_fed_server.json", "app/config/config_fed_client.json"


def write(root: Path, files: dict[str, object]) -> Path:
    """A job folder with these files, by path; what is no text is written as JSON."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return root


def test_a_job_is_named_after_nvflares_and_every_setting_is_listed(
    nvflare_folders: Path, flstream_here: Flstream, tmp_path: Path
) -> None:
    done = flstream_here("init", "--from-nvflare", nvflare_folders / "scatter_gather")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small-net"]
    written = {path.name for path in (tmp_path / "small-net").iterdir()}
    assert written == {"job.conf", "net.py", "train.py"}
    for line in (
        "app/config/config_fed_server.json",
        "  components[0].args.model: becomes model.factory, model.args",
        "  components[1] FullModelShareableGenerator: not needed: models travel as tensors",
        "  workflows[0].args.num_rounds = 1: becomes rounds",
        "  workflows[0].args.train_timeout = 0: no counterpart: no limit, while "
        "clients.round_timeout is an hour unless it is set",
        "1 without a counterpart, which job.conf lists, too.",
        "small-net has job.conf, net.py, train.py; next:",
        "  flstream simulate small-net   run it",
    ):
        assert line in done.stdout.splitlines(), line


def test_a_job_may_have_a_name_of_its_own(
    nvflare_folders: Path, flstream_here: Flstream, tmp_path: Path
) -> None:
    done = flstream_here("init", "sub/mine", "--from-nvflare", nvflare_folders / "scatter_gather")
    assert done.returncode == 0
    assert 'name = "mine"' in (tmp_path / "sub" / "mine" / "job.conf").read_text()
    assert (
        '  name = "small-net": not needed: the job is named after its folder, mine' in done.stdout
    )


def test_what_is_missing_is_said_with_its_key(
    nvflare_folders: Path, flstream_here: Flstream, tmp_path: Path
) -> None:
    file = nvflare_folders / "document" / "config_fed_server.conf"
    done = flstream_here("init", "--from-nvflare", file)
    assert (done.returncode, done.stderr) == (0, "")
    _, _, rest = done.stdout.partition(
        "document has job.conf; before it can run, job.conf needs:\n"
    )
    keys = [line.partition(":")[0].strip() for line in rest.splitlines()]
    assert keys == ["clients.count", "model.factory", "train.script"]


def test_nothing_of_a_folder_is_imported(
    nvflare_folders: Path, flstream_here: Flstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = f"open({str(tmp_path / 'was-run')!r}, 'w')\n"
    files = {
        "meta.json": {"name": "trap"},
        SERVER: json.loads((nvflare_folders / "scatter_gather" / SERVER).read_text()),
        CLIENT: json.loads((nvflare_folders / "scatter_gather" / CLIENT).read_text()),
        "app/custom/net.py": f"{trap}class Net: ...\n",
        "app/custom/train.py": f"{trap}import net\n",
        "app/custom/sitecustomize.py": trap,
    }
    folder = write(tmp_path / "in", files)
    monkeypatch.syspath_prepend(str(folder / "app" / "custom"))
    done = flstream_here("init", "--from-nvflare", "in")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "was-run").exists()
    assert "net" not in sys.modules
    assert "train" not in sys.modules


@pytest.mark.parametrize("taken", ["small-net", "mine"])
def test_a_folder_with_something_in_it_is_not_written_to(
    nvflare_folders: Path, flstream_here: Flstream, tmp_path: Path, taken: str
) -> None:
    write(tmp_path / taken, {"notes.txt": "mine"})
    words = ["mine"] if taken == "mine" else []
    done = flstream_here("init", *words, "--from-nvflare", nvflare_folders / "scatter_gather")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {taken} is not empty; name a new folder\n"
    assert [path.name for path in tmp_path.rglob("*")] == [taken, "notes.txt"]


def test_a_failed_copy_leaves_nothing(
    nvflare_folders: Path, flstream_here: Flstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        if source.name == "train.py":
            raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr("flstream.recipe.nvflare.writing.shutil.copyfile", full)
    done = flstream_here("init", "a/b", "--from-nvflare", nvflare_folders / "scatter_gather")
    assert done.returncode == 2
    assert "cannot be written or read: No space left on device" in done.stderr
    assert list(tmp_path.iterdir()) == []


WORKFLOW = {"id": "w", "name": "ScatterAndGather", "args": {"min_clients": 2, "num_rounds": 1}}


def runs(script: str) -> dict[str, object]:
    """A folder whose executor runs a script."""
    executor = {"name": "PTInProcessClientAPIExecutor", "args": {"task_script_path": script}}
    return {CLIENT: {"executors": [{"tasks": ["train"], "executor": executor}]}}


def launches(command: str) -> dict[str, object]:
    """A folder whose launcher starts a command."""
    launcher = {"id": "l", "name": "SubprocessLauncher", "args": {"script": command}}
    return {CLIENT: {"components": [launcher]}}


def deploys(deploy_map: object) -> dict[str, object]:
    """A folder with a deploy map."""
    return {"meta.json": {"deploy_map": deploy_map}, SERVER: {"workflows": [WORKFLOW]}}


# Each line stands for ten times the one before.
BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in pairwise("abcdefgh")
)
HOSTILE: dict[str, tuple[dict[str, object], str]] = {
    "no configuration": (
        {"README.md": "x"},
        "is no job folder of NVFlare: it has no config_fed_server nor config_fed_client",
    ),
    "no JSON": ({SERVER: '{"workflows": ['}, f"{SERVER} is not valid JSON: Expecting value"),
    "a list": ({SERVER: "[1, 2]"}, f"{SERVER} holds no keys"),
    "a key twice": ({SERVER: '{"a": 1, "a": 2}'}, f"{SERVER} has the key 'a' twice"),
    "deep JSON": ({SERVER: '{"a": ' * 60 + "1" + "}" * 60}, "is nested more than 40 levels deep"),
    "very deep JSON": ({SERVER: '{"a": ' * 100_000}, "is nested too deeply to be read"),
    "no HOCON": (
        {"app/config/config_fed_server.conf": "a = [1,\nb {"},
        "app/config/config_fed_server.conf: syntax error",
    ),
    "an unknown substitution": (
        {"app/config/config_fed_server.conf": "a = ${nowhere}"},
        "${nowhere} is set neither in the file nor in the environment",
    ),
    "a module that is included": (
        {"app/config/config_fed_server.conf": 'a = 1, include package("mine.sub:x.conf")'},
        "includes another file",
    ),
    "a file that is included": (
        {"app/config/config_fed_server.conf": 'a = "#"\ninclude "/etc/hostname"'},
        "includes another file",
    ),
    "no YAML": (
        {"app/config/config_fed_server.yml": "a: [1, &b [*b"},
        "app/config/config_fed_server.yml is not valid YAML",
    ),
    "a bomb of YAML": (
        {"app/config/config_fed_server.yml": BOMB},
        "has more than 50000 values",
    ),
    "a cycle of YAML": (
        {"app/config/config_fed_server.yml": "a: &a [*a]"},
        "is nested more than 40 levels deep",
    ),
    "10 MB": ({SERVER: " " * 10_000_000}, f"{SERVER} is larger than 1024 KiB"),
    "10 MB of HOCON": (
        {"app/config/config_fed_server.conf": "a = 1\n" * 1_700_000},
        "is larger than 256 KiB",
    ),
    "half a character": ({SERVER: '{"a": "\\ud800"}'}, "has a text with a character that no file"),
    "a NUL": ({SERVER: '{"a\\u0000": 1}'}, "has a text with a character that no file may have"),
    "a long key": ({SERVER: {"9" * 5000: 1}}, "has a key of more than 200 characters"),
    "workflows that are a section": (
        {SERVER: {"workflows": {"id": "w"}}},
        f"{SERVER}: workflows must be a list of sections",
    ),
    "components that are texts": (
        {SERVER: {"components": ["a"]}},
        f"{SERVER}: components must be a list of sections",
    ),
    "arguments that are a list": (
        {SERVER: {"workflows": [{"id": "w", "name": "FedAvg", "args": [1]}]}},
        f"{SERVER}: workflows[0].args must be a section of names and values",
    ),
    "a component without a class": (
        {SERVER: {"components": [{"id": "x"}]}},
        f"{SERVER}: components[0] names no class: it has neither a path nor a name",
    ),
    "an executor that is none": (
        {CLIENT: {"executors": [{"tasks": ["train"]}]}},
        f"{CLIENT}: executors[0].executor must be a section",
    ),
    "filters that are a section": (
        {SERVER: {"task_data_filters": [{"filters": {"a": 1}}]}},
        f"{SERVER}: task_data_filters[0].filters must be a list of sections",
    ),
    "variables in a circle": (
        {SERVER: {"a": "{b}", "b": "x{a}"}},
        "variables that stand for each other in a circle",
    ),
    "variables that grow": (
        {SERVER: {**{f"v{at}": f"{{v{at + 1}}}" * 40 for at in range(6)}, "v6": "x"}},
        "or for more than 100000 characters",
    ),
    "a script above": (
        runs("../../../secret.py"),
        f"{CLIENT}: executors[0].executor.args.task_script_path: the script ../../../secret.py "
        "lies outside of the app's folder custom; put it there",
    ),
    "a script elsewhere": (runs("/etc/x.py"), "the script /etc/x.py lies outside of the app's"),
    "a launched script above": (
        launches("python3 custom/../../x.py --a 1"),
        "the script custom/../../x.py lies outside of the app's folder custom",
    ),
    "a deploy map that is a list": (
        deploys(["app"]),
        "meta.json: deploy_map must be a section of apps with their sites",
    ),
    "sites that are numbers": (
        deploys({"app": [1]}),
        "meta.json: deploy_map.app must be a list of names of sites",
    ),
    "an app above": (
        deploys({"../other": ["@ALL"]}),
        "meta.json: deploy_map.../other lies outside of the job folder",
    ),
    "an app that is not there": (
        deploys({"app_1": ["a"], "app": ["server"]}),
        "meta.json: deploy_map names app_1, and there is no folder",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_cannot_be_read_is_refused_in_one_sentence(
    flstream_here: Flstream, tmp_path: Path, case: str
) -> None:
    files, message = HOSTILE[case]
    if "YAML" in case:
        pytest.importorskip("yaml")
    write(tmp_path / "in", files)
    before = sorted(tmp_path.rglob("*"))
    done = flstream_here("init", "new", "--from-nvflare", "in")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--from-nvflare", "nowhere"), "nowhere cannot be read: No such file or directory"),
        (("--from-nvflare", "notes.txt"), "notes.txt is no configuration; its suffix is none of"),
        (("my job", "--from-nvflare", "nowhere"), "a job cannot be named after the folder my job"),
        (("new", "--template", "script", "--from-nvflare", "x"), "give one of the two"),
        ((), "give the new folder a NAME: flstream init NAME"),
    ],
)
def test_a_wrong_request_is_refused(
    flstream_here: Flstream, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = flstream_here("init", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_links_out_of_the_folder_are_not_copied(flstream_here: Flstream, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("mine")
    folder = write(tmp_path / "in", {**runs("train.py"), "app/custom/train.py": ""})
    (folder / "app" / "custom" / "data.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "app" / "custom" / "above").symlink_to(tmp_path)
    done = flstream_here("init", "new", "--from-nvflare", "in")
    assert done.returncode == 0
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"job.conf", "train.py"}
    for name in ("above", "data.txt"):
        assert f"app/custom/{name}\n  no counterpart: it is no file of this folder" in done.stdout
    (folder / "app" / "custom" / "train.py").unlink()
    (folder / "app" / "custom" / "train.py").symlink_to(tmp_path / "secret.txt")
    done = flstream_here("init", "other", "--from-nvflare", "in")
    assert done.returncode == 2
    assert "the script train.py lies outside of the app's folder custom" in done.stderr


def test_names_with_spaces_and_signs_are_changed_and_control_characters_shown(
    flstream_here: Flstream, tmp_path: Path
) -> None:
    executor = {
        "path": "nvflare.PTInProcessClientAPIExecutor",
        "args": {"task_script_path": "my train.py", "a\x1b[2J": "b\n# rounds = 7\nseed = 9"},
    }
    files: dict[str, object] = {
        "meta.json": {"name": " my job! ", "deploy_map": {"app": ["server", "a b", "worker-1"]}},
        SERVER: {"workflows": [{**WORKFLOW, "args": {"min_clients": 2, "num_rounds": 1}}]},
        CLIENT: {"executors": [{"tasks": ["*"], "executor": executor}]},
        "app/custom/my train.py": "",
    }
    done = flstream_here("init", "--from-nvflare", write(tmp_path / "in", files))
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    text = (tmp_path / "my-job" / "job.conf").read_text()
    assert "\x1b" not in text
    assert [line for line in text.splitlines() if "seed" in line and line[0] != "#"] == []
    assert 'names = ["site-a-b", "site-worker-1"]' in text
    assert 'script = "my train.py"' in text
    assert (tmp_path / "my-job" / "my train.py").is_file()


def test_a_module_for_yaml_is_asked_for_only_where_it_is_needed(
    flstream_here: Flstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    write(tmp_path / "in", {"app/config/config_fed_server.yml": "format_version: 2\n"})
    done = flstream_here("init", "new", "--from-nvflare", "in")
    assert done.returncode == 2
    assert "is YAML, and there is no module yaml; install PyYAML" in done.stderr


def test_yaml_is_read_like_the_others(flstream_here: Flstream, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    text = (
        "format_version: 2\nn: 3\nworkflows:\n"
        "  - {id: w, name: ScatterAndGather, args: {min_clients: 2, num_rounds: '{n}'}}\n"
    )
    write(tmp_path / "in", {"app/config/config_fed_server.yml": text})
    done = flstream_here("init", "new", "--from-nvflare", "in")
    assert done.returncode == 0
    assert "rounds = 3\n" in (tmp_path / "new" / "job.conf").read_text()
