"""Tests of the package: `python3 -m unittest` in the directory above."""
