"""A script in a loop: in its site's own process, or run anew for each site and task."""

import pytest
import torch

from flstream.runs.site_states import StateFolder
from flstream.worker.messages import Answered, Failed, Logged, Ready

ADDS = """
import sys
import flstream.client as flare

flare.init()
tasks = 0
while flare.is_running():
    tasks += 1
    model = flare.receive()
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={"tasks": tasks}))
        continue
    for tensor in model.params.values():
        tensor += int(flare.get_site_name().removeprefix("site-"))
    flare.send(flare.FLModel(model.params, metrics={"tasks": tasks, "args": len(sys.argv)}))
"""


def model():
    return {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(4)}


def test_in_a_shared_process_a_script_is_run_anew_for_each_site(script):
    with script(ADDS, "--lr", "1") as serving:
        serving.server.hear(Ready)  # before there is a task
        trained = serving.server.train(model(), "site-2")
        update = serving.server.fetch(trained)
        assert torch.equal(update["w"], model()["w"] + 2)
        trained = serving.server.train(model(), "site-3", "site-5", round_number=2)
        assert serving.server.steps == ["turn", "received", "turn"]
        assert [site.metrics for site in trained.sites] == [{"tasks": 1, "args": 3}] * 2
        first, other = serving.server.updates(trained)
        assert torch.equal(first["w"], model()["w"] + 3)
        assert torch.equal(other["w"], model()["w"] + 5)
        scored = serving.server.evaluate(model(), "site-3", "site-1")
        assert [site.site for site in scored.sites] == ["site-3", "site-1"]
    assert serving.turns[:3] == ["site-2", None, "site-3"]


def test_a_script_that_raises_fails_its_site_and_the_others_go_on(script):
    with script("""
        import sys, flstream.client as flare

        flare.init()
        site = flare.get_site_name()
        if site == "site-1":
            raise ValueError("no data")
        while flare.is_running():
            if site == "site-2":
                sys.exit(4)
            if site == "site-3":
                break
            model = flare.receive()
            flare.send(flare.FLModel(model.params))
        if site == "site-5":
            raise ValueError("after it had answered")
    """) as serving:
        for number in (1, 2):
            trained = serving.server.train(
                model(), *[f"site-{n}" for n in range(1, 6)], round_number=number
            )
            reasons = [reason for _, _, reason in serving.server.failures()]
            assert reasons == [
                "client.py, line 7 raised ValueError: no data",
                "client.py exited with status 4",
                "client.py ended without answering the task; send() an FLModel for each task",
            ]
            assert [site.site for site in trained.sites] == ["site-4", "site-5"]
            assert [update.keys() for update in serving.server.updates(trained)] == [{"w", "n"}] * 2


@pytest.mark.parametrize("site", [None, "site-2"])
def test_a_site_whose_folder_cannot_be_used_fails_until_it_can(script, tmp_path, site):
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites/site-2").write_text("not a folder")
    with script(ADDS, site=site) as serving:
        assert serving.server.train(model(), "site-2").sites == []
        [(_, _, reason)] = serving.server.failures()
        assert "site-2/state" in reason
        (tmp_path / "sites/site-2").unlink()
        trained = serving.server.train(model(), "site-2")
        assert serving.server.fetch(trained)["n"] == 6


@pytest.mark.parametrize(
    "text", ["flare.is_running(); 1 / 0", "flare.receive(); 1 / 0", "flare.is_running()"]
)
def test_in_its_own_process_a_failed_script_ends_it(script, text):
    with script(f"import flstream.client as flare\nflare.init()\n{text}", site="site-1") as serving:
        serving.server.ask("train", model(), "site-1", round_number=2)
        failed = serving.server.hear(Failed)
        assert (failed.site, failed.effect) == ("site-1", 2)
        assert ("ZeroDivisionError" if "/" in text else "without answering") in failed.reason
        serving.join()


def test_what_a_script_left_in_memory_is_gone_before_the_next_model_comes(script, tmp_path):
    """Functions and variables of a script refer to each other, which only the collector undoes."""
    (tmp_path / "helper.py").write_text("refs = []")
    with script("""
        import weakref, torch, flstream.client as flare, helper

        flare.init()
        left = sum(ref() is not None for ref in helper.refs)
        mine = torch.zeros(12345)
        helper.refs.append(weakref.ref(mine))
        def refer():
            return mine
        flare.is_running()
        flare.send(flare.FLModel(flare.receive().params, metrics={"left": left}))
    """) as serving:
        left = []
        for _ in range(3):
            trained = serving.server.train(model(), "site-1")
            left.append(trained.sites[0].metrics["left"])
            serving.server.fetch(trained)
        assert left == [0, 0, 0]


def test_values_are_logged_for_the_site_and_the_round_and_one_answer_is_given(script):
    with script("""
        import flstream.client as flare
        from flstream.errors import ClientError

        flare.init()
        flare.receive()
        flare.log("losses", {"train": 1, "val": 2.5, "why": "late"}, "SCALARS", global_step=30)
        flare.log("note", "halfway", data_type="TEXT", sender="me")
        flare.send(flare.FLModel(metrics={"a": 1}))
        assert not flare.is_running() and flare.receive() is None
        assert flare.get_site_name() in ("site-1", "site-8")
        try:
            flare.send(flare.FLModel(metrics={"a": 2}))
        except ClientError:
            flare.log("again", 1)
    """) as serving:
        scored = serving.server.evaluate(model(), "site-1", "site-8", round_number=4)
        assert [site.metrics for site in scored.sites] == [{"a": 1}] * 2
        logged = [m for m in serving.server.heard if isinstance(m, Logged)]
        for site in ("site-1", "site-8"):
            assert [m for m in logged if m.site == site] == [
                Logged(4, site, "losses/train", 1.0, 30),
                Logged(4, site, "losses/val", 2.5, 30),
                Logged(4, site, "losses/why", None, 30, "late"),
                Logged(4, site, "note", None, None, "halfway"),
                Logged(4, site, "again", 1.0),
            ]


COUNTS = """
import json, flstream.client as flare

flare.init()
info = flare.system_info()
while flare.is_running():
    flare.receive()
    file = flare.get_state_dir() / "count"
    count = int(file.read_text()) + 1 if file.exists() else 1
    file.write_text(str(count))
    if count == 3:
        raise ValueError("three")
    assert flare.system_info() == {**info, "task_seed": 2}
    flare.send(flare.FLModel(None if flare.is_evaluate() else {}, metrics={"count": count}))
json.dumps(info)
"""


@pytest.mark.parametrize("site", [None, "site-2"])
def test_a_site_finds_its_own_files_again(script, tmp_path, site):
    with script(COUNTS, site=site) as serving:
        states = StateFolder(str(tmp_path / "sites/site-2"))
        for number in (1, 2):
            trained = serving.server.train({}, "site-2", round_number=number)
            # It is kept before the update is on offer.
            assert [version.effect for version in states.versions()] == [1, 2][:number]
            serving.server.fetch(trained)
            assert trained.sites[0].metrics["count"] == number
            # An evaluation is free to change what it sees, and changes nothing.
            if number == 1:
                scored = serving.server.evaluate({}, "site-2", round_number=number)
                assert scored.sites[0].metrics["count"] == 2
        serving.server.ask("train", {}, "site-2", round_number=3)
        assert "three" in serving.server.hear(Failed).reason
    assert [version.effect for version in states.versions()] == [1, 2]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("flare.is_running()", "call flstream.client.init()"),
        ("flare.init(); flare.receive(); flare.send(flare.FLModel())", "has no params"),
        (
            "flare.init(); flare.receive(); flare.get_state_dir()\n"
            "flare.send(flare.FLModel({'w': 'text'}))",
            "'w' is a str",
        ),
    ],
)
def test_misuse_of_the_client_api_is_named_and_keeps_no_state(script, tmp_path, text, reason):
    with script(f"import flstream.client as flare\n{text}") as serving:
        assert serving.server.train(model(), "site-2") == Answered(1, [])
        [(_, _, said)] = serving.server.failures()
        assert reason in said
        assert "Error: " in said
        assert list(tmp_path.glob("sites/site-2/state/*")) == []


def test_a_task_of_another_site_is_refused_by_a_sites_own_process(script):
    with script(ADDS, site="site-1") as serving:
        serving.server.ask("train", model(), "site-2")
        assert "ProtocolError" in serving.server.hear(Failed).reason
