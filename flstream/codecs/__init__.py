"""Codecs: fewer bytes for a model on its way, exact or with a loss that is the same every time."""
