"""Filters: what a site does to models on their way to and from its training code, on ranges."""
