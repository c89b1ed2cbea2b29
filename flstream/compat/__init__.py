"""Names of other frameworks for what flstream has, so that their code runs unchanged."""
