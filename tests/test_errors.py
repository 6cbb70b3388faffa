from __future__ import annotations

import sys

import pytest

from pmpguard import errors


def test_every_error_is_ours_and_shows_its_fix():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) >= 6
    for kind in kinds:
        assert issubclass(kind, errors.PmpguardError)
        error = kind("pairs.csv row 3: caption is blank", fix="remove the row")
        assert (error.message, error.fix) == ("pairs.csv row 3: caption is blank", "remove the row")
        assert str(error) == "pairs.csv row 3: caption is blank\nFix: remove the row"
        assert str(kind("alone")) == "alone"


def test_require_gives_the_module_or_names_the_extra():
    assert errors.require("json.decoder", "plots") is sys.modules["json.decoder"]
    with pytest.raises(errors.MissingExtraError) as flagged:
        errors.require("no_such_package.inner", "ann")
    assert str(flagged.value) == (
        "this needs the package 'no_such_package', which is not installed\nFix: pip install 'pmpguard[ann]'"
    )


def test_require_names_the_package_that_is_missing_not_the_one_that_asked(tmp_path, monkeypatch):
    (tmp_path / "asking_package.py").write_text("import missing_inside\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(errors.MissingExtraError, match="'missing_inside'"):
        errors.require("asking_package", "tensorboard")


def test_whatever_a_damaged_file_raises_is_our_error_and_names_it(tmp_path):
    for error in (KeyError("a"), TypeError("b"), AttributeError("c"), EOFError(), RecursionError()):
        with (
            pytest.raises(errors.ModelError, match=r"model: damaged, or not what its name says") as caught,
            errors.damage_named(tmp_path / "model", "restore it", errors.ModelError),
        ):
            raise error
        assert caught.value.__cause__ is error and caught.value.fix == "restore it"
    with pytest.raises(errors.DataError, match="damaged"), errors.damage_named(tmp_path, ""):
        raise OSError(22, "Invalid argument")
    with pytest.raises(errors.DataError, match="ours"), errors.damage_named(tmp_path, ""):
        raise errors.DataError("ours")
    with pytest.raises(FileNotFoundError), errors.damage_named(tmp_path, ""):
        raise FileNotFoundError
