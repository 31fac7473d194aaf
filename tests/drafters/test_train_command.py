"""Commands of training that are asked for help, for nothing, or for what is not there: a text or one line, no traceback."""

from __future__ import annotations

from types import ModuleType

import pytest

from drafters.train import __main__ as train
from drafters.train import compare, evaluate, learning_curve

MODULES = [train, evaluate, compare, learning_curve]
COMMANDS = pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__.split(".")[2])


@COMMANDS
def test_help_is_the_docstring(module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("-h", "--help"):
        assert module.main([flag]) == 0
        assert capsys.readouterr().out == f"{module.__doc__}\n"


@COMMANDS
def test_no_recipe_is_one_line_of_usage_with_the_recipes_that_there_are(module, capsys) -> None:
    assert module.main([]) == 2
    line = capsys.readouterr().err
    name = module.__name__.removesuffix(".__main__")
    assert line.startswith(f"samerig: usage: python -m {name} RECIPE ")
    assert line.endswith("; known recipes are dflash, dflash2, dflash_start, dspark, eagle3, mtp, xpress\n")
    assert line.count("\n") == 1


@COMMANDS
def test_an_unknown_recipe_is_one_line(module, capsys) -> None:
    assert module.main(["eagle9", "4"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("samerig: recipe 'eagle9' is unknown; known are dflash, ")
    assert line.count("\n") == 1
