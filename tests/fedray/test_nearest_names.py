"""A misspelt name is answered with the nearest one that exists."""

import re

import pytest

import fedray
from fedray.base.errors import InputError
from fedray.base.nearest import did_you_mean, nearest_first


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (("audt", "trace"), "'audt'. Did you mean 'audit'"),
        (("audit", "trace", "--pge", "x.html"), "--pge (Possible options: --gauges, --page)"),
        (("audit", "trace", "--verfy"), "--verify"),
        (("reproduce", "gbord"), "unknown reproduction 'gbord'; did you mean 'gboard'?"),
        (("reproduce", "gboard", "--row", "en-GB"), "--rows"),
        (("run", "quickstart", "--place", "shard=2"), "keys are shards"),
        (("schema", "populaton"), "population"),
        (
            (
                "optimize",
                "bant",
                *(["--rounds", "9", "--min-sep", "3", "--max-participations", "2"]),
            ),
            "choose from banded, ",
        ),
    ],
)
def test_a_misspelt_command_option_or_word_gets_the_nearest(
    fedray_command, typed, expected
) -> None:
    code, out, error = fedray_command(*typed)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert expected in error


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("rounds.report_gaol=5", "report_goal"),
        ("privacy.mechanism.kind=tre", "tree"),
        ("training.client.kind=fedprx", "fedprox"),
        ("availability.model=habbit", "habit"),
        # The literature's words, which no spelling leads from to those here.
        ("analytics.trust=[{kind='central'}]", "server"),
        ("analytics.trust=[{kind='distributed'}]", "devices"),
    ],
)
def test_a_misspelt_key_or_value_gets_the_nearest(small, override: str, nearest: str) -> None:
    with pytest.raises(InputError, match=f"did you mean {nearest!r}"):
        small(override)


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        (
            "privacy.encoding={kind='discrete_gaussian', parameters=9}",
            "fixed_point, secagg; give privacy.trust={kind='devices', parameters=...} instead",
        ),
        ("privacy.trust={kind='shuffled'}", "local; it is for questions (analytics.trust), so"),
    ],
)
def test_a_kind_of_another_table_gets_that_table(small, override: str, remedy: str) -> None:
    with pytest.raises(InputError, match=re.escape(remedy)):
        small(override)


@pytest.mark.parametrize(
    ("module", "name", "nearest"),
    [
        (fedray, "audit_trac", "audit_trace"),
        (fedray.mechanisms, "BandFUH", "BandFHU"),
        (fedray.scenario, "Privcy", "Privacy"),
    ],
)
def test_a_misspelt_python_name_gets_the_nearest(module, name: str, nearest: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute {name!r}; did you mean {nearest!r}"):
        getattr(module, name)


def test_a_name_like_no_other_gets_all_of_them() -> None:
    with pytest.raises(AttributeError, match=r"'qqq'; it has .*, simulate, "):
        getattr(fedray, "qqq")  # noqa: B009
    assert did_you_mean("qqq", ["audit", "run"], "take one") == "take one"
    assert nearest_first("rnu", ["audit", "run", "ask"]) == ["run", "audit", "ask"]
