"""Which variables a script carries from one task to the next, found without running it."""

import pytest

from flstream.job.kept_variables import kept_variables

KEPT = {
    "optimizer": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        flare.init()
        while flare.is_running():
            model = flare.receive()
            train(net, optimizer)
        """,
    "scheduler sgd": """
        from torch.optim import SGD
        def main():
            sgd = SGD(net.parameters())
            scheduler = make(sgd)
            while flare.is_running():
                loss = step(sgd)
                scheduler.step()
        """,
    "best": """
        best = 0.0
        while flare.is_running():
            accuracy = test()
            if accuracy > best:
                best = accuracy
        """,
    "count seen": """
        count, seen = 0, []
        while flare.is_running():
            count += 1
            seen.append(count)
        """,
    "history": """
        history = {}
        while flare.is_running():
            model = flare.receive()
            history[model.current_round] = 1
        """,
    "sgd": """
        if __name__ == "__main__":
            with Writer() as writer:
                sgd: Optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                while True:
                    model = flare.receive()
                    if model is None:
                        break
                    train(net, sgd, writer)
        """,
    "batches generator": """
        generator, batches = None, None
        generator = torch.Generator()
        batches = iter(loader)
        while flare.is_running():
            batch = next(batches)
            draw(generator)
        """,
    "": """
        net, loader, args, model = Net(), make_loader(), parse(), None
        optimizer = None
        while flare.is_running():
            model = flare.receive()
            net.load_state_dict(model.params)
            optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)
            for batch in loader:
                optimizer.zero_grad()
                optimizer.step
            flare.send(flare.FLModel(params=net.state_dict()))
        """,
}


@pytest.mark.parametrize("names", KEPT)
def test_variables_that_live_on_are_found(tmp_path, names):
    script = tmp_path / "client.py"
    lines = KEPT[names].strip("\n").splitlines()
    script.write_text("\n".join(line[8:] for line in lines))
    assert sorted(kept_variables(script)) == names.split()


def test_a_script_that_cannot_be_read_has_none(tmp_path):
    (tmp_path / "client.py").write_text("while flare.is_running(:")
    assert kept_variables(tmp_path / "client.py") == []
    assert kept_variables(tmp_path / "none.py") == []
