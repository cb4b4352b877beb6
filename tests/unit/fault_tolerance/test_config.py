"""FaultToleranceConfig: normal forms, files, command line, and what a mistake is answered with."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import pickle
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.fault_tolerance.config import SETTINGS, FaultToleranceConfig, option_of, resolve
from holdfast.options.arguments import parse_args


def write(folder: Path, text: str) -> str:
    path = folder / "ft.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


# ------------------------------------------------------------------ normal forms
@pytest.mark.parametrize("value", [signal.SIGUSR1, 10, "SIGUSR1", "sigusr1", " SigUsr1 "], ids=repr)
def test_a_signal_is_given_by_member_number_or_name(value):
    """Every accepted form becomes the member of ``signal.Signals``."""
    config = FaultToleranceConfig(rank_termination_signal=value)

    assert config.rank_termination_signal is signal.SIGUSR1


@pytest.mark.parametrize("value", [None, 0, 4711, "9", "USR1", "SIGNONE", 9.0, True], ids=repr)
def test_what_is_no_signal_is_refused(value):
    """Unknown names and numbers, numbers as text, and other types are errors."""
    with pytest.raises(ValueError, match="rank_termination_signal"):
        FaultToleranceConfig(rank_termination_signal=value)


@pytest.mark.parametrize(
    ("value", "level"),
    [
        ("debug", logging.DEBUG),
        ("DBG", logging.DEBUG),
        ("Info", logging.INFO),
        ("warn", logging.WARNING),
        ("WARNING", logging.WARNING),
        ("error", logging.ERROR),
        ("critical", logging.CRITICAL),
        (10, 10),
        (35, 35),
        (50, 50),
    ],
)
def test_a_log_level_is_given_by_number_or_name(value, level):
    """Every accepted form becomes the number."""
    assert FaultToleranceConfig(log_level=value).log_level == level


@pytest.mark.parametrize("value", [None, 9, 51, "10", "verbose", 20.0, True], ids=repr)
def test_what_is_no_log_level_is_refused(value):
    """Numbers out of range, numbers as text, unknown names and other types are errors."""
    with pytest.raises(ValueError, match="log_level"):
        FaultToleranceConfig(log_level=value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rank_heartbeat_timeout", -1),
        ("rank_heartbeat_timeout", 0),
        ("rank_heartbeat_timeout", "900"),
        ("rank_heartbeat_timeout", True),
        ("rank_heartbeat_timeout", float("nan")),
        ("rank_heartbeat_timeout", [1]),
        ("workload_check_interval", None),
        ("workload_check_interval", float("inf")),
        ("safety_factor", 0),
        ("learned_timeout_floor", -0.1),
        ("rank_section_timeouts", {"step": -3}),
        ("rank_section_timeouts", {"step": "3"}),
        ("rank_section_timeouts", {3: 3}),
        ("rank_section_timeouts", {"": 3}),
        ("rank_section_timeouts", ["step"]),
        ("enable_nic_monitor", "false"),
        ("enable_nic_monitor", 0),
        ("segment", 0),
        ("segment", 2.5),
        ("attrsvc_port", 70000),
        ("attrsvc_host", 4),
        ("storage_healthcheck_path", "/data,models"),
    ],
)
def test_a_value_of_the_wrong_kind_or_size_is_refused_by_name(field, value):
    """The error names the field, shows the value and says what is accepted."""
    with pytest.raises(ConfigError) as caught:
        FaultToleranceConfig(**{field: value})

    assert str(caught.value).startswith(f"{field}: {value!r} cannot be used")
    assert "; it takes " in str(caught.value)


def test_no_limit_is_null_or_infinity():
    """Both mean that a clock never runs out; whole numbers of seconds become floats."""
    config = FaultToleranceConfig(
        rank_heartbeat_timeout=float("inf"),
        initial_rank_heartbeat_timeout=None,
        rank_section_timeouts={"step": None, "save": 60},
    )

    assert config.rank_heartbeat_timeout is None
    assert config.initial_rank_heartbeat_timeout is None
    assert config.rank_section_timeouts == {"step": None, "save": 60.0}


def test_sections_are_the_configurations_own():
    """A map that is changed afterwards does not change the configuration."""
    sections = {"step": 3.0}
    config = FaultToleranceConfig(rank_section_timeouts=sections)
    sections["save"] = 4.0

    assert config.rank_section_timeouts == {"step": 3.0}
    assert FaultToleranceConfig().rank_section_timeouts == {}


def test_the_defaults_are_the_documented_ones():
    """Those that programs rely on."""
    config = FaultToleranceConfig()

    assert config.workload_check_interval == 5.0
    assert config.initial_rank_heartbeat_timeout == 3600.0
    assert config.rank_heartbeat_timeout == 2700.0
    assert config.rank_out_of_section_timeout is None
    assert config.safety_factor == 5.0
    assert config.rank_termination_signal is signal.SIGKILL
    assert config.log_level == logging.INFO
    assert config.skip_section_response is True
    assert config.use_infra_group_rank is True
    assert config.learned_timeout_floor == 30.0
    assert config.is_progress_tracking_enabled
    assert not FaultToleranceConfig(max_no_progress_cycles=0).is_progress_tracking_enabled


# ------------------------------------------------------------------ from names
def test_unknown_names_are_passed_over_or_refused():
    """As the caller asks; a refusal suggests the nearest field."""
    config = FaultToleranceConfig.from_kwargs(safety_factor=3, restart_policy="any-failed")

    assert config == FaultToleranceConfig(safety_factor=3.0)
    with pytest.raises(ValueError, match=r"'safty_factor' \(did you mean 'safety_factor'\?\)"):
        FaultToleranceConfig.from_kwargs(ignore_not_recognized=False, safty_factor=3)


def test_the_former_name_of_the_progress_limit_is_understood(tmp_path, caplog):
    """With one warning, which says what to write; from a program and from a file."""
    old, text = "max_no_progress_restarts", "is an old name, write max_no_progress_cycles"
    path = write(tmp_path, f"fault_tolerance: {{{old}: 7}}")
    for config, where in (
        (FaultToleranceConfig.from_kwargs(ignore_not_recognized=False, **{old: 7}), ""),
        (FaultToleranceConfig.from_yaml_file(path, ignore_not_recognized=False), f"{path}: "),
        (FaultToleranceConfig.from_args(SimpleNamespace(ft_cfg_path=path)), f"{path}: "),
    ):
        assert config.max_no_progress_cycles == 7
        said = caplog.records.pop(0).getMessage()
        section = "fault_tolerance." if where else ""
        assert said == f"{where}{section}{old} {text}"
    assert not caplog.records


# ------------------------------------------------------------------ files
@pytest.mark.parametrize(
    "text",
    [
        "fault_tolerance: {safety_factor: 3}",
        "a: 1\nb:\n  c: {fault_tolerance: {safety_factor: 3}}",
        "jobs:\n- x\n- fault_tolerance: {safety_factor: 3}",
        # on one level our key comes before what lies deeper, wherever it stands
        "a: {fault_tolerance: {safety_factor: 9}}\nfault_tolerance: {safety_factor: 3}",
        # first in order among siblings; an empty hit is passed over
        (
            "a: {fault_tolerance: }\nb: {fault_tolerance: {safety_factor: 3}}\n"
            "c: {fault_tolerance: {safety_factor: 9}}"
        ),
        "a: {fault_tolerance: true}\nb: {fault_tolerance: {safety_factor: 3}}",
        "a: &a [*a, {fault_tolerance: {safety_factor: 3}}]",
    ],
)
def test_the_section_is_found_at_any_depth(tmp_path, text):
    """Outer before inner, earlier before later, empty ones passed over."""
    config = FaultToleranceConfig.from_yaml_file(write(tmp_path, text))

    assert config == FaultToleranceConfig(safety_factor=3.0)


@pytest.mark.parametrize("text", ["", "a: 1", "fault_tolerance:", "fault_tolerance: {}", "- 1"])
def test_a_file_without_our_section_is_an_error_that_names_it(tmp_path, text):
    """Missing and empty are the same."""
    path = write(tmp_path, text)

    with pytest.raises(ValueError, match="no section 'fault_tolerance'") as caught:
        FaultToleranceConfig.from_yaml_file(path)
    assert str(caught.value).startswith(path)


def test_a_missing_file_is_named(tmp_path):
    """It can be caught as what it is, too."""
    path = str(tmp_path / "none.yaml")

    with pytest.raises(FileNotFoundError) as caught:
        FaultToleranceConfig.from_yaml_file(path)
    assert isinstance(caught.value, ConfigError)
    assert str(caught.value) == f"{path}: no such file"


@pytest.mark.parametrize("text", ["a: [1,", "\x00", "a: 2024-13-41", "[" * 5000])
def test_a_file_that_is_not_yaml_is_named_in_one_line(tmp_path, text):
    """It can be caught as YAML's error, too."""
    path = write(tmp_path, text)

    with pytest.raises(yaml.YAMLError) as caught:
        FaultToleranceConfig.from_yaml_file(path)
    assert isinstance(caught.value, ConfigError)
    assert str(caught.value).startswith(f"{path}: is not valid YAML")
    assert "\n" not in str(caught.value)


def test_a_folder_in_place_of_the_file_is_named(tmp_path):
    """Whatever the system says, it is said about the file."""
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        FaultToleranceConfig.from_yaml_file(str(tmp_path))


def test_a_bad_value_in_a_file_names_file_key_and_value(tmp_path):
    """One bad value does not make the rest of the file vanish: it stops the start."""
    path = write(tmp_path, "fault_tolerance: {safety_factor: 3, rank_heartbeat_timeout: soon}")

    with pytest.raises(ConfigError) as caught:
        FaultToleranceConfig.from_yaml_file(path)
    assert str(caught.value) == (
        f"{path}: fault_tolerance.rank_heartbeat_timeout: 'soon' cannot be used; "
        "it takes a number of seconds > 0, or null for no timeout"
    )


def test_a_section_that_is_no_map_is_shown(tmp_path):
    """It is our key, so it is not passed over in silence."""
    with pytest.raises(ConfigError, match="fault_tolerance: True cannot be used"):
        FaultToleranceConfig.from_yaml_file(write(tmp_path, "fault_tolerance: true"))


def test_numbers_that_yaml_takes_for_text_are_explained(tmp_path):
    """YAML 1.1 reads 1e3 as text, to everybody's surprise."""
    with pytest.raises(ConfigError, match=r"it is text, write 1000\.0 without quotes"):
        FaultToleranceConfig.from_yaml_file(
            write(tmp_path, "fault_tolerance: {safety_factor: 1e3}")
        )


def test_unknown_keys_of_a_file_are_named_in_one_warning(tmp_path, caplog):
    """The run goes on: jobs carry keys of other programs and versions."""
    path = write(
        tmp_path,
        "fault_tolerance: {rank_hartbeat_timeout: 4, safety_factor: 3, restart_policy: x, zzz: }",
    )

    config = FaultToleranceConfig.from_yaml_file(path)

    assert config == FaultToleranceConfig(safety_factor=3.0)
    [record] = caplog.records
    assert record.getMessage() == (
        f"{path}: fault_tolerance: unknown keys 'rank_hartbeat_timeout' (did you mean "
        "'rank_heartbeat_timeout'?), 'restart_policy', 'zzz'; ignored"
    )
    with pytest.raises(ValueError, match="zzz"):
        FaultToleranceConfig.from_yaml_file(path, ignore_not_recognized=False)
    caplog.clear()
    assert FaultToleranceConfig.from_args(SimpleNamespace(ft_cfg_path=path)) == config
    assert "ignored" in caplog.text


seconds = st.floats(min_value=0.001, allow_infinity=False, allow_nan=False)
configs = st.builds(
    FaultToleranceConfig,
    rank_heartbeat_timeout=st.none() | seconds,
    rank_section_timeouts=st.dictionaries(st.text(min_size=1), st.none() | seconds, max_size=4),
    rank_out_of_section_timeout=st.none() | seconds,
    safety_factor=st.floats(min_value=0.001, allow_infinity=False),
    rank_termination_signal=st.sampled_from(list(signal.Signals)),
    log_level=st.integers(10, 50),
    enable_nic_monitor=st.booleans(),
    segment=st.none() | st.integers(min_value=1),
    pci_topo_file=st.none() | st.text(),
    max_no_progress_cycles=st.integers(),
)


@given(config=configs)
def test_a_file_gives_back_what_was_written(tmp_path_factory, config):
    """For every configuration there can be."""
    path = str(tmp_path_factory.getbasetemp() / "round-trip.yaml")
    config.to_yaml_file(path)

    assert FaultToleranceConfig.from_yaml_file(path) == config


@given(config=configs)
def test_a_message_gives_back_what_was_sent(config):
    """Through JSON, which has no signals."""
    assert FaultToleranceConfig.from_wire(json.loads(json.dumps(config.to_wire()))) == config


def through_yaml(config: FaultToleranceConfig, path: Path) -> FaultToleranceConfig:
    config.to_yaml_file(str(path))
    return FaultToleranceConfig.from_yaml_file(str(path))


@pytest.mark.parametrize(
    "copied",
    [
        lambda config, _: copy.copy(config),
        lambda config, _: copy.deepcopy(config),
        lambda config, _: pickle.loads(pickle.dumps(config)),
        lambda config, _: dataclasses.replace(config, safety_factor=3.0),
        lambda config, _: FaultToleranceConfig(**dataclasses.asdict(config)),
        lambda config, _: FaultToleranceConfig.from_kwargs(**vars(config)),
        lambda config, _: FaultToleranceConfig.from_wire(json.loads(json.dumps(config.to_wire()))),
        lambda config, folder: through_yaml(config, folder / "out.yaml"),
    ],
    ids=["copy", "deepcopy", "pickle", "replace", "asdict", "vars", "wire", "yaml"],
)
@pytest.mark.parametrize(
    ("fields", "ends"),
    [
        ({}, True),
        ({"initial_rank_heartbeat_timeout": 3600.0}, False),
        ({"initial_rank_heartbeat_timeout": 3600}, False),
        ({"initial_rank_heartbeat_timeout": 60.0}, False),
        ({"initial_rank_heartbeat_timeout": 60.0, "section_ends_initial_timeout": True}, True),
        ({"section_ends_initial_timeout": False}, False),
    ],
)
def test_whether_the_initial_limit_was_chosen_survives_every_copy(tmp_path, copied, fields, ends):
    """Also where it was chosen to be what the default is; and copies are equal."""
    config = FaultToleranceConfig(**fields)
    twice = copied(copied(config, tmp_path), tmp_path)

    assert config.is_initial_ended_by_section is ends
    assert twice.is_initial_ended_by_section is ends
    assert dataclasses.replace(twice, safety_factor=5.0) == config


def test_an_initial_limit_that_is_set_later_was_chosen(tmp_path):
    """As an attribute, in a file, or on the command line over a file that was written out."""
    config = FaultToleranceConfig()
    config.initial_rank_heartbeat_timeout = 60.0
    assert not config.is_initial_ended_by_section
    assert not FaultToleranceConfig.from_wire(config.to_wire()).is_initial_ended_by_section

    by_hand = write(tmp_path, "fault_tolerance: {initial_rank_heartbeat_timeout: 3600}")
    assert not FaultToleranceConfig.from_yaml_file(by_hand).is_initial_ended_by_section

    path = tmp_path / "out.yaml"
    FaultToleranceConfig().to_yaml_file(str(path))
    args = SimpleNamespace(ft_cfg_path=str(path))
    assert FaultToleranceConfig.from_args(args).is_initial_ended_by_section
    args.ft_initial_rank_heartbeat_timeout = "3600"
    assert not FaultToleranceConfig.from_args(args).is_initial_ended_by_section


def test_a_file_holds_all_fields_with_signal_and_level_in_their_own_form(tmp_path):
    """Signal by name, log level by number; normalised, and checked, once more."""
    path = tmp_path / "out.yaml"
    config = FaultToleranceConfig()
    config.rank_termination_signal = "sigterm"
    config.log_level = "debug"
    config.to_yaml_file(str(path))

    section = yaml.safe_load(path.read_text())["fault_tolerance"]
    assert list(section) == list(SETTINGS)
    assert (section["rank_termination_signal"], section["log_level"]) == ("SIGTERM", 10)
    config.safety_factor = "much"
    with pytest.raises(ConfigError):
        config.to_yaml_file(str(path))


# ------------------------------------------------------------------ command line
def test_what_a_program_has_added_to_a_configuration_stays_with_it(tmp_path):
    """As an attribute of its own, or as a field of a class of its own."""

    @dataclasses.dataclass
    class Config(FaultToleranceConfig):
        team: str = "a"

    config = Config(safety_factor=7.0)
    config.started_by = object()

    config.to_yaml_file(str(tmp_path / "a.yaml"))

    assert FaultToleranceConfig.from_yaml_file(str(tmp_path / "a.yaml")).safety_factor == 7.0
    assert config.to_wire() == FaultToleranceConfig(safety_factor=7.0).to_wire()


def test_the_command_line_overrides_the_file_which_overrides_the_defaults(tmp_path):
    """Field by field, and each knows where its value is from."""
    path = write(tmp_path, "fault_tolerance: {safety_factor: 3, rank_heartbeat_timeout: 7}")
    args = SimpleNamespace(ft_cfg_path=path, ft_rank_heartbeat_timeout="9", ft_log_level=None)

    resolved = resolve(args)

    assert resolved.config == FaultToleranceConfig(safety_factor=3, rank_heartbeat_timeout=9)
    assert resolved.config == FaultToleranceConfig.from_args(args)
    assert resolved.origins["rank_heartbeat_timeout"] == "command line"
    assert resolved.origins["safety_factor"] == f"file {path}"
    assert resolved.origins["log_level"] == "default"


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("rank_heartbeat_timeout", "none", None),
        ("rank_heartbeat_timeout", "NULL", None),
        ("rank_heartbeat_timeout", "", None),
        ("rank_heartbeat_timeout", " 1e2 ", 100.0),
        ("rank_section_timeouts", "", {}),
        ("rank_section_timeouts", " a : 1 , b:null,c:d:2.5 ", {"a": 1.0, "b": None, "c:d": 2.5}),
        ("rank_termination_signal", "sigusr2", signal.SIGUSR2),
        ("log_level", "warn", logging.WARNING),
        ("enable_nic_monitor", "No", False),
        ("enable_nic_monitor", "yes", True),
        ("segment", "4", 4),
        ("storage_healthcheck_path", "/a,/b", "/a,/b"),
    ],
)
def test_text_is_read_as_the_field_says(field, text, value):
    """Numbers, null, sections, names, booleans."""
    config = FaultToleranceConfig.from_args(SimpleNamespace(**{f"ft_{field}": text}))

    assert getattr(config, field) == value


@pytest.mark.parametrize(
    ("field", "text", "complaint"),
    [
        ("rank_heartbeat_timeout", "soon", "'soon' cannot be used"),
        ("rank_heartbeat_timeout", "-5", "'-5' cannot be used"),
        ("rank_section_timeouts", "step", "'step' is not NAME:SECONDS"),
        ("rank_section_timeouts", ":3", "':3' is not NAME:SECONDS"),
        ("rank_section_timeouts", "step:x", "section 'step' has 'x'"),
        ("rank_section_timeouts", "a:1,a:2", "'a:2' is given twice"),
        ("enable_dist_storage_healthcheck", "maybe", "it takes true or false"),
        ("segment", "2.5", "it takes a whole number"),
    ],
)
def test_text_that_cannot_be_read_names_its_option(field, text, complaint):
    """The option in its own spelling, the value, and what is accepted."""
    with pytest.raises(ConfigError) as caught:
        FaultToleranceConfig.from_args(SimpleNamespace(**{f"ft_{field}": text}))

    assert str(caught.value).startswith(f"{option_of(field)}: ")
    assert complaint in str(caught.value)


_OFF = ("false", "0", "no", "False", "NO")
_ON = ("true", "1", "yes", "enabled", "on", "TRUE")
_BY_WORD = {  # specification 5.2: which words decide, and what every other word is
    "use_infra_group_rank": (("false", "0", "no"), True),
    "enable_nic_monitor": (("false", "0", "no"), True),
    "enable_nic_healthcheck": (("false", "0", "no"), True),
    "check_remaining_processes": (("false", "0", "no"), True),
    "install_exception_hook": (("false", "0", "no"), True),
    "skip_section_response": (("true", "1", "yes"), False),
}


@pytest.mark.parametrize("field", _BY_WORD)
@pytest.mark.parametrize("word", [*_OFF, *_ON, "off", "maybe", "", " no "])
def test_a_boolean_option_is_read_by_its_few_words(field, word, caplog):
    """False iff false, 0, no; or true iff true, 1, yes. An unusual word is warned of."""
    words, otherwise = _BY_WORD[field]
    value = FaultToleranceConfig.from_args(SimpleNamespace(**{f"ft_{field}": word}))

    expected = not otherwise if word.strip().lower() in words else otherwise
    assert getattr(value, field) is expected
    usual = _ON if expected else (*_OFF, "off")
    is_usual = word.strip().lower() in map(str.lower, usual)
    assert [repr(word) in line for line in caplog.messages] == ([] if is_usual else [True])


@pytest.mark.parametrize("word", ["true", "True", "yes", "1", "false", "no", "0"])
def test_a_boolean_option_that_checks_its_words_takes_the_usual_ones(word):
    """Specification 5.2: a word that is none of them is an error (see above)."""
    args = SimpleNamespace(ft_enable_dist_storage_healthcheck=word)

    config = FaultToleranceConfig.from_args(args)
    assert config.enable_dist_storage_healthcheck is (word.lower() in ("true", "yes", "1"))


_NUMBERS = [  # specification 2.4: their text may be null, which is as if it was not given
    "workload_check_interval",
    "node_health_check_interval",
    "safety_factor",
    "restart_check_interval",
    "gpu_memory_reclaim_timeout",
    "gpu_memory_tolerance_mb",
    "gpu_memory_poll_interval",
]


@pytest.mark.parametrize("field", _NUMBERS)
@pytest.mark.parametrize("text", ["", "none", "NULL"])
def test_text_for_null_leaves_a_number_that_cannot_be_null_as_it_was(tmp_path, field, text):
    """A job script with --ft-safety-factor "$FACTOR" and no FACTOR; a file's value holds."""
    path = write(tmp_path, f"fault_tolerance: {{{field}: 7}}")

    config = FaultToleranceConfig.from_args(
        SimpleNamespace(**{"ft_cfg_path": path, f"ft_{field}": text})
    )
    assert getattr(config, field) == 7.0


def test_a_safety_factor_below_1_is_accepted_with_a_warning(tmp_path, caplog):
    """The specification has no bound; hardly anybody means it."""
    path = write(tmp_path, "fault_tolerance: {safety_factor: 0.5}")
    by_option = SimpleNamespace(ft_safety_factor="0.5")

    for config in (
        FaultToleranceConfig.from_yaml_file(path),
        FaultToleranceConfig.from_args(by_option),
    ):
        assert config.safety_factor == 0.5
    assert ["safety_factor is 0.5, less than 1" in line for line in caplog.messages] == [True] * 2


SLIPS = [
    ("fault_tolerance: {rank_hartbeat_timeout: 30}", "did you mean 'rank_heartbeat_timeout'?"),
    ("fault_tolerance: {safety_factor: 3, zzz: 1}", "unknown key 'zzz'; correct or remove it"),
    (
        "fault_tolerance: {restart_policy: x}",
        "'restart_policy' is set by --ft-restart-policy alone",
    ),
    ("fault_tolerance: {yes: 1}", "unknown key 'True'"),
    ("fault_tolerence: {safety_factor: 3}", "did you mean 'fault_tolerance' by 'fault_tolerence'?"),
    ("a: [{fault-tolerance: {safety_factor: 3}}]", "by 'fault-tolerance'?"),
    (
        "fault_tolerance:\nrank_heartbeat_timeout: 30",
        "'rank_heartbeat_timeout' must stand below it",
    ),
    ("model: 1", "has no section 'fault_tolerance'"),
    ("", "has no section 'fault_tolerance'"),
]


@pytest.mark.parametrize(("text", "expected"), SLIPS, ids=[text or "empty" for text, _ in SLIPS])
def test_the_launcher_refuses_a_file_with_a_slip_of_the_pen(tmp_path, text, expected):
    """It would switch the detection of hangs off: one line names the file and what was meant."""
    path = write(tmp_path, text)

    with pytest.raises(ConfigError) as caught:
        resolve(parse_args(["--ft-cfg-path", path, "train.py"], {}))
    assert str(caught.value).startswith(f"{path}: ")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_section_is_passed_over_if_asked_an_unknown_key_never(tmp_path):
    """``--ft-ignore-missing-cfg`` is about what is missing."""
    words = ["--ft-ignore-missing-cfg", "--ft-cfg-path"]
    resolved = resolve(parse_args([*words, write(tmp_path, "a: 1"), "train.py"], {}))
    assert resolved.config == FaultToleranceConfig()
    assert "continuing without it" in resolved.warnings[0]

    slip = write(tmp_path, "fault_tolerance: {rank_hartbeat_timeout: 30}")
    with pytest.raises(ConfigError, match="did you mean 'rank_heartbeat_timeout'"):
        resolve(parse_args([*words, slip, "train.py"], {}))


def test_the_launcher_takes_old_names_from_a_file(tmp_path):
    """They are known, so they are no slip."""
    path = write(tmp_path, "fault_tolerance: {max_no_progress_restarts: 7}")

    resolved = resolve(parse_args(["--ft-cfg-path", path, "train.py"], {}))
    assert resolved.config.max_no_progress_cycles == 7
    assert "is an old name" in resolved.warnings[0]


def test_programs_of_the_other_implementation_pass_over_a_file_without_our_section(
    tmp_path, caplog
):
    """``from_args``: with a warning; everything else that is wrong with a file is an error."""
    path = write(tmp_path, "")
    assert FaultToleranceConfig.from_args(SimpleNamespace(ft_cfg_path=path)) == (
        FaultToleranceConfig()
    )
    [record] = caplog.records
    assert path in record.getMessage()

    bad = write(tmp_path, "fault_tolerance: {safety_factor: x}")
    with pytest.raises(ConfigError):
        FaultToleranceConfig.from_args(SimpleNamespace(ft_cfg_path=bad))
    with pytest.raises(FileNotFoundError):
        FaultToleranceConfig.from_args(SimpleNamespace(ft_cfg_path=str(tmp_path / "none")))


def test_a_missing_file_is_passed_over_if_asked(tmp_path, caplog):
    """Older job scripts name a file that need not be there."""
    args = SimpleNamespace(ft_cfg_path=str(tmp_path / "none"), ft_ignore_missing_cfg=True)

    assert FaultToleranceConfig.from_args(args) == FaultToleranceConfig()
    assert "no such file" in caplog.text


def test_every_field_is_described():
    """Help and errors are made of it."""
    for name, setting in SETTINGS.items():
        assert setting.help[0].isupper(), name
        assert not setting.help.endswith("."), name
        assert setting.why, name
        assert setting.kind.accepts, name
