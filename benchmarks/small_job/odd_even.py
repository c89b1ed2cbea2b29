"""A user's workflow: odd sites and even sites train in turn, each on what the others made."""


def odd_even(run):
    """Train the odd sites, then the even ones, in each round."""
    model = run.initial_model()
    for _ in run.rounds():
        for remainder in (1, 0):
            sites = [site for site in run.sites if int(site.split("-")[1]) % 2 == remainder]
            model = run.fold(model, run.train(model, sites))
        run.evaluate(model)
    return model
