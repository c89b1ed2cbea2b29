"""When the driver of a Ray cluster lets a run begin."""

import asyncio
from multiprocessing import Pipe

import pytest
from journal_support import a_job

pytest.importorskip("ray")

from flstream.engines.ray import ClusterReady
from flstream.engines.ray_driver import _Driver, _Node
from flstream.errors import SimulationError
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.events import NodesAwaited


@pytest.mark.parametrize("comes", [True, False])
def test_a_node_may_take_longer_than_engine_wait_to_import_and_to_build_the_base(tmp_path, comes):
    ours, theirs = Pipe()

    async def begin() -> None:
        job = a_job(engine={"type": "ray", "wait": "1 s", "cpus": 1})
        driver = _Driver(theirs, job, RunDirectory(tmp_path))
        node = _Node("node", 3)
        driver._nodes.append(node)
        driver._seen.add("identity")
        node.is_preparing = True
        begun = asyncio.create_task(driver._await_nodes())
        done, _ = await asyncio.wait([begun], timeout=1.2)
        assert not done
        if comes:
            node.is_preparing, node.is_ready = False, True
        else:
            driver._nodes.remove(node)
        driver._note_change()
        await begun

    if comes:
        asyncio.run(begin())
        assert isinstance(ours.recv(), NodesAwaited)
        assert ours.recv() == ClusterReady(3)
    else:
        with pytest.raises(SimulationError, match=r"engine\.wait"):
            asyncio.run(begin())
