"""Codecs: fewer bytes for a model on its way, exact or with a repeatable loss."""
