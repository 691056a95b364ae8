"""The working directory is searched, last and once."""

import os
import sys

import pytest

from dapo.hooks import search_working_directory

CASES = [(["a"], ["a", "HERE"]), (["", "a"], ["", "a", "HERE"]), (["HERE"], ["HERE"])]


@pytest.mark.parametrize(("before", "after"), CASES)
def test_the_working_directory_comes_last_and_once(tmp_path, monkeypatch, before, after):
    monkeypatch.chdir(tmp_path)
    here = os.getcwd()
    monkeypatch.setattr(sys, "path", [here if entry == "HERE" else entry for entry in before])
    search_working_directory()
    search_working_directory()
    assert sys.path == [here if entry == "HERE" else entry for entry in after]
