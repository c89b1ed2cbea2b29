"""Folder of the file that a command runs, apart from modules that it could shadow."""
