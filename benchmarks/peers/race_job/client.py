"""What each site does in the race: train by the code that pfl-research's users run, too."""

from softmax import Softmax, site_tensors, train

import flstream.client as flare


class Digits(flare.Learner):
    """One object works for hundreds of sites."""

    def __init__(self) -> None:
        self.module = Softmax()

    def train(self, model: flare.FLModel) -> flare.FLModel:
        """Train the global model, and send it back."""
        images, labels = site_tensors(self.site.index)
        self.module.load_state_dict(model.params or {})
        train(self.module, images, labels)
        return flare.FLModel(self.module.state_dict(), meta={"num_examples": len(images)})
