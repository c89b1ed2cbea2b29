"""What is wrong with a job's code is found by looking at it: nothing of it is run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flstream.job import load_job
from flstream.job.code_check import code_problems

Problems = Callable[..., list[str]]


@pytest.fixture
def problems(tmp_path: Path) -> Problems:
    """Return a function that writes a job's script and model, and says what is wrong with them."""

    def find(script: str = "", model: str = "def build(): ...", *overrides: str) -> list[str]:
        (tmp_path / "client.py").write_text(script)
        (tmp_path / "model.py").write_text(model)
        (tmp_path / "job.conf").write_text(
            'name = test, rounds = 1, clients.count = 1, model.factory = "model:build"\n'
            "train.script = client.py"
        )
        job = load_job(tmp_path / "job.conf", overrides)
        return [str(problem).replace(f"{tmp_path}/", "") for problem in code_problems(job)]

    return find


def test_sound_code_has_no_problems_and_is_not_run(problems: Problems) -> None:
    script = "import os.path, torch, model\nfrom . import x\nfrom flstream.client import init\n1/0"
    assert problems(script, "import numpy\ndef build(): ...\n1/0") == []


def test_every_file_is_looked_at(problems: Problems) -> None:
    found = problems("import nosuch.thing", "from nowhere import x\ndef build(): ...")
    assert found == [
        "train.script: client.py line 1 imports nosuch.thing, and there is no module nosuch; "
        "install it where flstream is, or put it beside the file",
        "model.factory: model.py line 1 imports nowhere, and there is no module nowhere; "
        "install it where flstream is, or put it beside the file",
    ]


CLIENT = """
import flstream.client as flare
from flstream import client
from flstream.client import FLModel, recieve
import flstream.client.trackers

flare.init()
while flare.is_runing():
    model = client.receive()
    model.no_matter(client.patch)
"""


def test_names_that_the_client_api_has_not_are_named_with_their_lines(problems: Problems) -> None:
    recieve, trackers, running, patch = problems(CLIENT)
    where = "which flstream.client has not"
    assert recieve == (
        f"train.script: client.py line 4 uses recieve, {where}; did you mean receive?"
    )
    assert trackers.startswith(f"train.script: client.py line 5 uses trackers, {where}")
    assert running == (
        f"train.script: client.py line 8 uses is_runing, {where}; did you mean is_running?"
    )
    assert patch.startswith(f"train.script: client.py line 10 uses patch, {where}; it has Dynamic")


def test_who_imports_nvflare_is_told_what_to_import_instead(problems: Problems) -> None:
    [problem] = problems("import nvflare.client as flare")
    assert problem.endswith(
        "write import flstream.client as flare instead, which has the same functions"
    )


def test_an_import_that_may_have_an_alternative_is_no_mistake(problems: Problems) -> None:
    assert problems("try:\n    import nosuch\nexcept ImportError:\n    nosuch = None") == []


def test_code_that_parses_but_does_not_compile_is_a_mistake(problems: Problems) -> None:
    assert problems("return 1") == ["train.script: client.py line 1: 'return' outside function"]


def test_the_code_of_a_learner_is_looked_at_instead_of_a_script(problems: Problems) -> None:
    learner = "train.learner=client:Mine", "train.script=null"
    text = "import nosuch\nclass Mine: ..."
    assert problems(text, "def build(): ...", *learner)[0].startswith(
        "train.learner: client.py line 1 imports nosuch"
    )


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("json.decoder:JSONDecoder", []),
        ("json.decodr:JSONDecoder", ["model.factory: there is no installed module json.decodr"]),
        ("os.path:join", ["model.factory: there is no installed module os.path"]),
        ("torch._C:Tensor", []),
    ],
)
def test_code_of_installed_modules_is_found_without_importing_it(
    problems: Problems, factory: str, said: list[str]
) -> None:
    assert problems("", "def build(): ...", f"model.factory={factory}") == said


def test_a_name_that_an_installed_module_lacks_is_named(problems: Problems) -> None:
    [said] = problems("", "def build(): ...", "model.factory=json.decoder:JsonDecoder")
    assert "has no 'JsonDecoder' at its top level; did you mean JSONDecoder?" in said


def test_a_factory_beside_a_file_with_the_weights_is_looked_at(
    problems: Problems, tmp_path: Path
) -> None:
    (tmp_path / "m.safetensors").write_bytes(b"")
    initial = f"model.initial={tmp_path}/m.safetensors"
    [said] = problems("", "import nosuch\ndef build(): ...", initial)
    assert "there is no module nosuch" in said
    assert problems("", "import nosuch\ndef build(): ...", initial, "model.factory=null") == []


ALIASED = """
import nvflare.client as flare
import nvflare.app_opt.lightning
from nvflare.app_common.abstract.fl_model import FLModel, ParamsTyp
from nvflare.app_common.app_constant import ModelName
from nvflare.client import tracking, recieve
from nvflare.fuel.utils import fobs
from nvflare.app_opt.pt import fedproxloss

flare.init()
optimizer = torch.optim.SGD([], 0.1)
while flare.is_runing():
    fedproxloss.Loss(fedproxloss.PTFedProxLoss)
    optimizer.step()
"""


def test_under_the_alias_what_it_has_not_is_named_with_its_line(problems: Problems) -> None:
    found = problems(ALIASED, "def build(): ...", "train.alias=nvflare")
    starts = [
        "line 3 imports nvflare.app_opt.lightning, which train.alias has not; it has nvflare.apis",
        "line 4 uses ParamsTyp, which nvflare.app_common.abstract.fl_model has not; did you mean",
        "line 6 uses recieve, which nvflare.client has not; did you mean receive?",
        "line 7 imports nvflare.fuel.utils, which train.alias has not; it has nvflare.apis",
        "line 12 uses is_runing, which nvflare.client has not; did you mean is_running?",
        "line 13 uses Loss, which nvflare.app_opt.pt.fedproxloss has not; it has PTFedProxLoss",
    ]
    assert len(found) == len(starts)
    for problem, start in zip(found, starts, strict=True):
        assert problem.startswith(f"train.script: client.py {start}")
    every_name = (
        "import nvflare.client.api\nfrom nvflare.client import *\nnvflare.client.api.init()"
    )
    assert problems(every_name, "def build(): ...", "train.alias=nvflare") == []


def test_under_the_alias_a_script_that_keeps_variables_needs_a_process_a_site(
    problems: Problems,
) -> None:
    script = ALIASED.replace("is_runing", "is_running").splitlines()
    kept = "\n".join(["import nvflare.client as flare", *script[9:12], "    optimizer.step()"])
    shared = "clients.count=3", "clients.parallel=2"
    [problem] = problems(kept, "def build(): ...", "train.alias=nvflare", *shared)
    assert problem == (
        "clients.parallel: 2 processes for 3 clients; must be 3, as many as there are clients; "
        "client.py keeps optimizer from round to round, and with fewer processes it is run anew "
        "for each task"
    )
    assert problems(kept, "def build(): ...", "train.alias=nvflare", "clients.count=3") == []


def test_names_in_the_files_that_a_script_imports_are_looked_at(
    problems: Problems, tmp_path: Path
) -> None:
    (tmp_path / "loop.py").write_text("import nvflare.client.tensorflow as flare\n")
    (tmp_path / "broken.py").write_text("def (:")
    [problem] = problems("import loop\nimport broken", "def build(): ...", "train.alias=nvflare")
    assert "loop.py line 1 imports nvflare.client.tensorflow, which train.alias has not" in problem
