"""The rounds of cyclic, with a run that only writes down what it is asked for."""

from typing import NamedTuple

from flstream.workflows.cyclic import CyclicArgs, cyclic


class Trained(NamedTuple):
    """An update, which is there or not."""

    model: str
    site: str
    answered: bool

    def __bool__(self) -> bool:
        return self.answered


class Recorder:
    """A run of two rounds and three sites that notes what it is asked for."""

    def __init__(self, failing=()):
        self.calls = []
        self._failing = failing

    def initial_model(self):
        return "model"

    def rounds(self):
        yield from (1, 2)

    def order(self, number, order):
        assert order == "random"
        return ["c", "a", "b"] if number == 1 else ["b", "c", "a"]

    def train(self, model, sites, min_updates):
        assert min_updates == 0
        [site] = sites
        return Trained(model, site, (site not in self._failing))

    def adopt(self, updates):
        return f"{updates.model} {updates.site}"

    def evaluate(self, model):
        self.calls.append(model)


def test_the_model_goes_from_site_to_site_and_is_evaluated_once_a_round():
    run = Recorder()
    assert cyclic(run, CyclicArgs(order="random")) == "model c a b b c a"
    assert run.calls == ["model c a b", "model c a b b c a"]


def test_a_site_that_does_not_answer_is_passed_over():
    assert cyclic(Recorder(failing=("a",)), CyclicArgs(order="random")) == "model c b b c"
