def step(site):
    return int(site[-1])
