"""The faults that are planted to try the suite fit the source."""

import shutil

import pytest

from tests.planted_faults import ROOT, faults, plant

FAULTS = faults()


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_can_be_planted(fault, tmp_path):
    copy = tmp_path / "src" / "boonta" / fault.file
    copy.parent.mkdir(parents=True)
    shutil.copy(ROOT / "src" / "boonta" / fault.file, copy)
    plant(fault, tmp_path)
    compile(copy.read_text(), fault.file, "exec")
    assert all((ROOT / "tests" / name.partition("::")[0]).exists() for name in fault.tests)
