"""engine/capabilities.py: the list that refusals, docs and tests read is true to itself."""

import pytest

from engine import capabilities
from engine.capabilities import FEATURES, Status, feature, matrix, refuse_unsupported
from engine.errors import ConfigError
from tests.test_layering import ROOT


def test_names_and_flags_are_unique() -> None:
    assert len({f.name for f in FEATURES}) == len(FEATURES)
    flags = [f.flag for f in FEATURES if f.flag]
    assert len(set(flags)) == len(flags)


@pytest.mark.parametrize("row", FEATURES, ids=lambda f: f.name)
def test_a_proven_cell_names_tests_that_exist(row: capabilities.Feature) -> None:
    if Status.PROVEN in (row.v0, row.v1):
        assert row.tests, f"{row.name} is called proven, but nothing proves it"
    for name in row.tests:
        assert (ROOT / name).is_file(), f"{row.name} names {name}, which does not exist"


def test_an_engine_that_cannot_names_the_one_that_can() -> None:
    refuse_unsupported("v0", ["whole_prefill"])
    with pytest.raises(ConfigError, match=r"not available on V1.*ENGINE_V1=0"):
        refuse_unsupported("v1", ["whole_prefill"])


def test_what_neither_engine_has_says_so() -> None:
    with pytest.raises(ConfigError, match=r"--tensor-parallel-size.*either engine"):
        refuse_unsupported("v0", ["tensor_parallel"])


def test_a_conflict_is_refused_only_where_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    conflict = capabilities.Conflict("chunked_prefill", "abort", ("v0",), "of a reason")
    monkeypatch.setattr(capabilities, "CONFLICTS", (conflict,))
    with pytest.raises(ConfigError, match="of a reason"):
        refuse_unsupported("v0", ["abort", "chunked_prefill"])
    refuse_unsupported("v1", ["abort", "chunked_prefill"])
    refuse_unsupported("v0", ["abort"])


def test_the_matrix_is_the_list() -> None:
    rows = matrix()
    assert [row["feature"] for row in rows] == [f.name for f in FEATURES]
    assert rows[0]["v0"] == feature(str(rows[0]["feature"])).v0.value
