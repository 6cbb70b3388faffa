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
