class Learner:
    """A learner of NVFlare's interface, of which nothing is imported."""
