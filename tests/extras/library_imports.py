"""Imports of the fork server of these tests, which only reads this file."""
