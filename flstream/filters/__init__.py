"""Filters: changes of models, by ranges, between a site and its training code."""
