"""The file that a command runs, in a folder of its own: Python finds modules beside it first."""
