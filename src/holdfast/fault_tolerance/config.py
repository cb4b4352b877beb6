"""How a job is watched: one dataclass, filled from code, a YAML file or the command line.

Every field is described once, in its declaration: kind of value, default with its reason, help. The
checks below, ``ft_launcher --help`` and ``--print-config`` all read that description. Times are
seconds; ``None`` as a limit means that the clock never runs out.

Light to import, because every rank and the launcher do: YAML comes in when needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from signal import SIGKILL, Signals
from typing import Any, NamedTuple

from holdfast.base.pure.wording import nearest
from holdfast.errors import ConfigError
from holdfast.options import values
from holdfast.options.config_file import SECTION, SectionNotFoundError, read_section

GIVEN = "given_timeouts"
"""Key of :meth:`FaultToleranceConfig.given_timeouts` beside the fields, on the wire."""
_INITIAL_S = float("3600")  # an object of its own, unlike a literal; see below
"""The default of ``initial_rank_heartbeat_timeout``.

The object itself marks the default: a given number is another object, even if it is equal. So the
mark survives copies, ``dataclasses.replace`` and ``asdict``, and is gone when the attribute is set.
Where only the number travels (YAML, JSON, pickle), ``section_ends_initial_timeout`` is written.
"""
_HEARTBEAT_S = float("2700")
"""The default of ``rank_heartbeat_timeout``, an object of its own for the same reason."""
_HEARTBEAT_MARK = "_is_heartbeat_default"
LEARNED_FLOOR_S = 30.0
"""The default of ``learned_timeout_floor``."""
_INFO = 20
_FORMER_NAMES = {"max_no_progress_restarts": "max_no_progress_cycles"}
"""Keys of earlier generations that mean a field of today."""


class Setting(NamedTuple):
    """One field besides its name and default.

    Attributes:
        kind: Of its values.
        help: One sentence; starts with a capital, ends without a full stop.
        why: The reason for the default.
        option: Its command-line option, where that is not ``--ft-`` and the field's name.
        idle: Why it has no effect here; empty: it has one.
    """

    kind: values.ValueKind
    help: str
    why: str
    option: str | None = None
    idle: str = ""


def _setting(
    default: Any,
    kind: values.ValueKind,
    help_: str,
    why: str,
    *,
    option: str | None = None,
    idle: str = "",
) -> Any:
    metadata = {"setting": Setting(kind, help_, why, option, idle)}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def _unused(kind: values.ValueKind, default: Any = None, idle: str = values.NOT_YET) -> Any:
    """Its name is accepted, and values of its kind; by default of a service that is not here."""
    return _setting(default, kind, "A setting of nvidia-resiliency-ext", "theirs", idle=idle)


_LIMIT = values.Numeric("seconds", above=0, null="no timeout")
_INTERVAL = values.Numeric("seconds", above=0, blank=True)
_ON_UNLESS_SAID = values.WordFlag(otherwise=True)


@dataclass
class FaultToleranceConfig:
    """Settings of one job; the same for its launchers, monitors and ranks.

    Values are checked and brought to their normal form on construction, by :meth:`from_args` and
    by :meth:`to_yaml_file`, not when an attribute is set.

    Raises:
        ConfigError: A value that its field does not take; it is a ``ValueError``.
    """

    workload_check_interval: float = _unused(
        _INTERVAL, 5.0, "a monitor sleeps until the instant at which a timeout can run out"
    )
    initial_rank_heartbeat_timeout: float | None = _setting(
        _INITIAL_S,
        _LIMIT,
        "Longest healthy time from a rank's init to its first heartbeat; the default also ends "
        "with its first section, a given value does not",
        "loading a large model and compiling it may take most of an hour",
    )
    rank_heartbeat_timeout: float | None = _setting(
        _HEARTBEAT_S,
        _LIMIT,
        "Longest healthy time between two heartbeats of a rank",
        "longer than any checkpoint that is written between two of them",
    )
    rank_section_timeouts: dict[str, float | None] = _setting(  # noqa: RUF009 - it is a field()
        {},
        values.Sections(),
        "Longest healthy time in each section; others are not watched",
        "only you know their names",
    )
    rank_out_of_section_timeout: float | None = _setting(
        None,
        _LIMIT,
        "Longest healthy time outside all sections, from init on",
        "ranks that use heartbeats only are always outside",
    )
    section_ends_initial_timeout: bool | None = _setting(
        None,
        values.Flag("true for the default of that timeout, false for a given one"),
        "Whether a rank's first section ends initial_rank_heartbeat_timeout, as its first "
        "heartbeat does",
        "true for its default, false for a given one",
    )
    first_call_timeout: float | None = _setting(
        None,
        _LIMIT,
        "Longest healthy time from the first init_workload_monitoring() of a rank of the job to "
        "that of each other rank",
        "a script may have only some of its ranks call it",
    )
    exit_timeout: float | None = _setting(
        7200.0,
        _LIMIT,
        "Longest healthy time from shutdown_workload_monitoring(), or the end of its connection,"
        " to the end of a rank's process or its next init",
        "the last checkpoint may be uploaded and the model evaluated; a hang at exit is found",
    )
    evidence_timeout: float = _setting(
        1.0,
        values.Numeric("seconds", least=0),
        "Longest time from the detection of a hang to the signal, in which all ranks are "
        "inspected; 0: the hung rank alone",
        "the cause is mostly another rank than the first one found, and looking takes 0.1 s",
    )
    learned_timeout_floor: float = _setting(
        LEARNED_FLOOR_S,
        values.Numeric("seconds", least=0),
        "Least learned timeout; 0 for none, and for timeouts as calculated also after one has "
        "killed a rank",
        "a fast run must not leave timeouts that kill the next, slower run",
    )
    learned_timeouts_below_given: bool | None = _setting(
        None,
        values.Flag("true where a program calls calculate_and_set_...(), false for callbacks"),
        "Whether a learned timeout may be shorter than one that you gave",
        "only where a program calls calculate_and_set_...()",
    )
    node_health_check_interval: float = _setting(
        5.0,
        _INTERVAL,
        "Period of the checks of GPUs and network cards while ranks run",
        "a broken device is found within seconds, at almost no load",
    )
    safety_factor: float = _setting(
        5.0,
        values.Numeric("factor", counted=False, above=0, blank=True),
        "Learned timeouts are this many times the longest measured duration",
        "steps vary by less, and a hang is still found soon",
    )
    rank_termination_signal: Signals = _setting(  # noqa: RUF009 - it is a field()
        SIGKILL,
        values.SignalName(),
        "Signal for a hung rank, after its stacks were taken",
        "a hung rank seldom runs a handler; evidence is taken before",
    )
    log_level: int = _setting(
        _INFO,
        values.LogLevel(),
        "Level of the log of the launcher and its monitors",
        "failures and restarts, nothing per step",
    )
    restart_check_interval: float = _setting(
        60.0,
        _INTERVAL,
        "How often the line of --ft-restarter-lines is repeated during a restart",
        "nvidia-resiliency-ext's",
    )
    enable_nic_monitor: bool = _setting(
        False,
        _ON_UNLESS_SAID,
        "Watch link-down counters of the network cards while ranks run",
        "a flap that NCCL survives need not stop the job",
    )
    enable_nic_healthcheck: bool = _setting(
        False,
        _ON_UNLESS_SAID,
        "Check that network links are up before each start",
        "nodes differ in which links have a cable",
    )
    enable_dist_storage_healthcheck: bool = _setting(
        False,
        values.Flag(),
        "Check that network file systems answer before each start",
        "a node is not excluded for a slow file system alone",
    )
    storage_healthcheck_path: str | None = _setting(
        None,
        values.AbsolutePaths(many=True),
        "Paths, separated by commas, that must be readable before each start",
        "only you know what the job reads",
        option="--ft-storage-health-check-path",
    )
    pci_topo_file: str | None = _setting(
        None,
        values.Text("PATH"),
        "XML file that lists which network cards belong to which GPU",
        "the node's own topology is read where it can be",
    )
    link_down_path_template: str | None = _setting(
        None,
        values.PathTemplate("TEMPLATE", "{nic}"),
        "Path of a network card's link-down counter, with {nic} for its name",
        "the path in sysfs is built in",
    )
    link_state_path_template: str | None = _setting(
        None,
        values.PathTemplate("TEMPLATE", "{nic}"),
        "Path of a network card's link state, with {nic} for its name",
        "the path in sysfs is built in",
    )
    skip_section_response: bool = _unused(
        values.WordFlag(otherwise=False), True, "misuse of sections is found at once in either case"
    )
    use_infra_group_rank: bool = _setting(
        True,
        _ON_UNLESS_SAID,
        "Take the order of nodes from SLURM_PROCID or GROUP_RANK, where set",
        "it keeps neighbours in the network neighbours in rank",
    )
    segment: int | None = _setting(
        None,
        values.Numeric("nodes", least=1, whole=True, null="no grouping"),
        "Place nodes in groups of this many in one NVLink domain: HOLDFAST_NODE_DOMAIN, else "
        "Slurm's block, else the GPUs' fabric",
        "no groups",
    )
    numa_bind_strict: bool = _unused(values.Flag(), False, "memory is always bound strictly")
    gpu_memory_reclaim_timeout: float = _setting(
        50.0,
        values.Numeric("seconds", least=0, blank=True),
        "How long a restart waits for GPU memory to be free; 0 for not at all",
        "drivers take seconds to free tens of gigabytes, seldom more",
    )
    gpu_memory_tolerance_mb: float = _setting(
        512.0,
        values.Numeric("megabytes", least=0, blank=True),
        "Memory in use up to which a GPU counts as free",
        "drivers and monitoring programs use that much",
    )
    gpu_memory_poll_interval: float = _setting(
        2.0,
        _INTERVAL,
        "Longest time between two checks of that",
        "checks begin 10 ms apart; the end of a process that holds memory leads to one at once",
    )
    check_remaining_processes: bool = _setting(
        False,
        _ON_UNLESS_SAID,
        "List processes that outlive their rank; they are killed in any case",
        "they are killed, so you need not act",
    )
    max_no_progress_cycles: int = _setting(
        2,
        values.Numeric("cycles", whole=True),
        "Stop after this many cycles in a row without progress; 0 for never",
        "nvidia-resiliency-ext's",
    )
    min_progress_iterations: int = _setting(
        1,
        values.Numeric("iterations", least=0, whole=True),
        "Training iterations in a cycle that count as progress",
        "a restart that gets one step further is of use",
    )
    checkpoint_iteration_file: str | None = _setting(
        None,
        values.Text("PATH"),
        "File with the iteration of the latest checkpoint, to measure progress by",
        "progress is not measured",
    )
    install_exception_hook: bool = _setting(
        False,
        _ON_UNLESS_SAID,
        "Kill a rank at once at an uncaught exception: exception_grace is 0",
        "exit handlers of the training program would not run",
    )
    exception_grace: float | None = _setting(
        2.0,
        values.Numeric("seconds", least=0, null="none"),
        "How long a rank's exit handlers may take after an uncaught exception before it is "
        "killed; none: it ends by itself, as with torchrun",
        "the other ranks wait for the restart; handlers that take longer mostly wait for them",
    )
    auto_heartbeat: bool = _setting(
        True,
        _ON_UNLESS_SAID,
        "Watch optimizer steps and collectives of a rank while no timeout of it runs",
        "a rank is killed for missing steps only where it is proved that no time can help",
    )
    auto_heartbeat_floor: float = _setting(
        600.0,
        values.Numeric("seconds", above=0),
        "Least time without progress before a stall of such a rank is reported; twice the "
        "longest so far, or 10 times a usual one, if that is more",
        "NCCL's watchdog waits as long; evaluations and checkpoints should be over",
    )
    auto_kill: str = _setting(
        values.PROOF,
        values.AutoKill(),
        "When ranks without steps and timeouts are killed: proof: where it is proved that no "
        "time can help, or torch itself would have; after=SECONDS: also after that time without "
        "progress, if others wait for a rank that is named; never",
        "a job that would have completed under torchrun completes",
    )
    num_warmup_iterations: int = _setting(
        5,
        values.Numeric("iterations", least=0, whole=True),
        "Iterations of each cycle in which the time outside sections is not limited",
        "the first steps compile kernels and fill caches",
    )
    attrsvc_host: str | None = _unused(values.Text("HOST"))
    attrsvc_port: int | None = _unused(
        values.Numeric("port", counted=False, least=1, most=65535, whole=True, null="none")
    )
    attribution_endpoint: str | None = _unused(values.Text("ADDRESS"))
    attribution_analysis_backend: str | None = _unused(values.Text("NAME"))
    attribution_export_url: str | None = _unused(values.Text("URL"))
    attribution_llm_api_key_file: str | None = _unused(values.Text("PATH"))
    attribution_llm_base_url: str | None = _unused(values.Text("URL"))
    attribution_llm_model: str | None = _unused(values.Text("NAME"))
    attribution_log_level: str | None = _unused(values.Text("LEVEL"))
    attribution_startup_timeout: float | None = _unused(
        values.Numeric("seconds", least=0, null="none")
    )
    attribution_stop_action: str | None = _unused(values.Text("NAME"))
    cycle_info_dir: str | None = _unused(values.Text("FOLDER"))
    cycle_info_job_id: str | None = _unused(values.Text("NAME"))

    @property
    def exception_grace_in_force(self) -> float | None:
        """``exception_grace``, or 0 with ``install_exception_hook``."""
        return 0.0 if self.install_exception_hook else self.exception_grace

    def __post_init__(self) -> None:
        for name, setting in SETTINGS.items():
            setattr(self, name, check(name, getattr(self, name), setting.kind))
        self._mark_default()

    def __getstate__(self) -> dict[str, Any]:
        """With the marks of defaults, which pickling would lose."""
        return {
            **vars(self),
            "section_ends_initial_timeout": self._said_of_initial(),
            _HEARTBEAT_MARK: self.rank_heartbeat_timeout is _HEARTBEAT_S,
        }

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """From ``__getstate__``."""
        vars(self).update(state)
        if vars(self).pop(_HEARTBEAT_MARK, False):
            self.rank_heartbeat_timeout = _HEARTBEAT_S
        self._mark_default()

    def _fields(self) -> dict[str, Any]:
        """Without attributes that a subclass or a program has added."""
        return {name: getattr(self, name) for name in SETTINGS}

    @property
    def is_initial_ended_by_section(self) -> bool:
        """A rank's first section ends ``initial_rank_heartbeat_timeout``, too."""
        if self.section_ends_initial_timeout is not None:
            return self.section_ends_initial_timeout
        return self.initial_rank_heartbeat_timeout is _INITIAL_S

    def _said_of_initial(self) -> bool | None:
        """For YAML, JSON and pickle: true also for the default of a default."""
        return self.is_initial_ended_by_section or self.section_ends_initial_timeout

    def _mark_default(self) -> None:
        """The reverse: a default that was written down is a default again."""
        is_default = self.initial_rank_heartbeat_timeout == _INITIAL_S
        if is_default and self.section_ends_initial_timeout:
            self.initial_rank_heartbeat_timeout = _INITIAL_S
            self.section_ends_initial_timeout = None

    def given_timeouts(self) -> dict[str, Any]:
        """The timeouts that the user gave, for JSON; ``None``: none, or the default.

        Of a configuration that was read from YAML or JSON, a default counts as given.
        """
        initial, subsequent = self.initial_rank_heartbeat_timeout, self.rank_heartbeat_timeout
        return {
            "initial": None if initial is _INITIAL_S else initial,
            "subsequent": None if subsequent is _HEARTBEAT_S else subsequent,
            "sections": dict(self.rank_section_timeouts),
            "out_of_section": self.rank_out_of_section_timeout,
        }

    @property
    def is_progress_tracking_enabled(self) -> bool:
        """A job that makes no progress is not restarted for ever."""
        return self.max_no_progress_cycles > 0

    @staticmethod
    def from_kwargs(ignore_not_recognized: bool = True, **kwargs: Any) -> FaultToleranceConfig:  # noqa: FBT001, FBT002 - public API
        """Build from fields by name.

        Args:
            ignore_not_recognized: Pass over names that are no field.
            kwargs: Fields; the rest have their defaults.

        Raises:
            ConfigError: A value that its field does not take, or an unknown name that is not to be
                ignored.
        """
        known, unknown = _sort_out(kwargs)
        if unknown and not ignore_not_recognized:
            raise ConfigError(describe_unknown(unknown))
        _warn(_former(kwargs))
        return FaultToleranceConfig(**known)

    @staticmethod
    def from_yaml_file(cfg_path: str, ignore_not_recognized: bool = True) -> FaultToleranceConfig:  # noqa: FBT001, FBT002 - public API
        """Build from the first non-empty map named ``fault_tolerance`` in a YAML file.

        It may be at any depth; outer before inner, earlier before later.

        Args:
            cfg_path: The file.
            ignore_not_recognized: Warn of unknown keys, once, and go on; jobs carry foreign keys.

        Raises:
            ConfigError: No such section, it is empty, or it holds a value that its field does not
                take. For a missing file it is a ``FileNotFoundError`` too, for a file that is not
                YAML a ``yaml.YAMLError``.
        """
        loaded = _load(cfg_path, is_lenient=ignore_not_recognized)
        _warn([*loaded.warnings, *doubts(loaded.config)])
        return loaded.config

    @staticmethod
    def from_args(args: object) -> FaultToleranceConfig:
        """Build from a parsed command line.

        Defaults, then the file ``args.ft_cfg_path``, then every ``args.ft_<field>`` that is not
        ``None``; text is read as on the command line. A file without that section, and unknown
        keys in it, give a warning, as programs for nvidia-resiliency-ext expect; ``ft_launcher``
        itself refuses both.

        Raises:
            ConfigError: The file or a value cannot be used.
        """
        resolved = resolve(args, is_lenient=True)
        _warn(resolved.warnings)
        return resolved.config

    def to_yaml_file(self, cfg_path: str) -> None:
        """Write all fields, under ``fault_tolerance``; :meth:`from_yaml_file` reads it back.

        Args:
            cfg_path: The file; one that is there is replaced.

        Raises:
            ConfigError: An attribute was set to a value that its field does not take.
            OSError: The file cannot be written.
        """
        import yaml  # noqa: PLC0415 - seldom needed

        section = FaultToleranceConfig(**self._fields()).to_wire()
        del section[GIVEN]
        section["rank_termination_signal"] = Signals(section["rank_termination_signal"]).name
        with open(cfg_path, "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib is heavy
            yaml.safe_dump({SECTION: section}, file, sort_keys=False)

    def to_wire(self) -> dict[str, Any]:
        """All fields as JSON can carry them, and :meth:`given_timeouts` under ``GIVEN``."""
        return {
            **self._fields(),
            GIVEN: self.given_timeouts(),
            "rank_termination_signal": int(self.rank_termination_signal),
            "rank_section_timeouts": dict(self.rank_section_timeouts),
            "section_ends_initial_timeout": self._said_of_initial(),
        }

    @staticmethod
    def from_wire(message: Mapping[str, Any]) -> FaultToleranceConfig:
        """What :meth:`to_wire` gave; unknown names, of another version, are passed over.

        Raises:
            ConfigError: A value that its field does not take.
        """
        return FaultToleranceConfig.from_kwargs(**message)


SETTINGS: dict[str, Setting] = {
    each.name: each.metadata["setting"] for each in fields(FaultToleranceConfig)
}
"""By name, in order of declaration."""


class Resolved(NamedTuple):
    """A configuration, and how it came about.

    Attributes:
        config: The result.
        origins: Source of each field's value: ``default``, ``file PATH`` or ``command line``.
        warnings: For the user, once.
    """

    config: FaultToleranceConfig
    origins: dict[str, str]
    warnings: list[str]


def resolve(args: object, *, is_lenient: bool = False) -> Resolved:
    """The configuration of a command line, with the origin of each value.

    Args:
        args: A parsed command line.
        is_lenient: A file without the section, and unknown keys in it, give a warning. Otherwise
            both are errors: a slip of the pen must not switch the detection of hangs off. A missing
            section is a warning also with ``args.ft_ignore_missing_cfg``.

    Raises:
        ConfigError: The file or a value cannot be used.
    """
    config = FaultToleranceConfig()
    origins = dict.fromkeys(SETTINGS, "default")
    warnings: list[str] = []
    if path := getattr(args, "ft_cfg_path", None):
        is_missing_allowed = getattr(args, "ft_ignore_missing_cfg", False)
        try:
            config, in_file, warnings = _load(path, args, is_lenient=is_lenient)
            origins.update(in_file)
        except SectionNotFoundError as error:
            if not (is_lenient or is_missing_allowed):
                raise ConfigError(f"{error}{_meant_section(error.keys)}") from None
            warnings.append(f"{error}{_meant_section(error.keys)}; continuing without it")
        except FileNotFoundError:
            if not is_missing_allowed:
                raise
            warnings.append(f"{path}: no such file; continuing without it, as asked")
    for name, setting in SETTINGS.items():
        value = getattr(args, f"ft_{name}", None)
        if value is None:
            continue
        if isinstance(value, str):
            text, value = value, parse(option_of(name), value, setting.kind)
            if isinstance(setting.kind, values.WordFlag) and (doubt := setting.kind.doubt(text)):
                warnings.append(f"{option_of(name)}: {doubt}")
            if (
                value is None
                and isinstance(setting.kind, values.Numeric)
                and not setting.kind.takes_null
            ):
                continue
        setattr(config, name, check(option_of(name), value, setting.kind))
        origins[name] = getattr(args, "origins", {}).get(f"ft_{name}", "command line")
    return Resolved(config, origins, [*warnings, *doubts(config)])


def option_of(name: str) -> str:
    """The command-line option of a field."""
    return SETTINGS[name].option or f"--ft-{name.replace('_', '-')}"


def check(key: str, value: object, kind: values.ValueKind) -> Any:
    """The normal form of a value.

    Raises:
        ConfigError: It is not accepted; the text names the key, the value and the accepted ones.
    """
    return _normal(key, value, kind, kind.check)


def parse(key: str, text: str, kind: values.ValueKind) -> Any:
    """The same of text."""
    return _normal(key, text, kind, kind.parse)


def _normal(key: str, value: Any, kind: values.ValueKind, read: Callable[[Any], Any]) -> Any:
    try:
        return read(value)
    except values.Unacceptable as error:
        because = f" ({error})" if str(error) else ""
        raise ConfigError(
            f"{key}: {value!r} cannot be used{because}; it takes {kind.accepts}"
        ) from None


def describe_unknown(names: list[str]) -> str:
    """One line about unknown keys."""
    described = []
    for name in names:
        known = nearest(name, SETTINGS)
        described.append(f"{name!r} (did you mean {known!r}?)" if known else repr(name))
    return f"unknown key{'s' if len(names) > 1 else ''} {', '.join(described)}"


def _sort_out(given: Mapping[Any, Any]) -> tuple[dict[str, Any], list[str]]:
    known: dict[str, Any] = {}
    unknown: list[str] = []
    for key, value in given.items():
        name = _FORMER_NAMES.get(key, key)
        if name in SETTINGS:
            known[name] = value
        else:
            unknown.append(str(key))
    return known, unknown


def _former(given: Mapping[Any, Any]) -> list[str]:
    return [
        f"{old} is an old name, write {new}" for old, new in _FORMER_NAMES.items() if old in given
    ]


def _load(path: str, args: object = None, *, is_lenient: bool) -> Resolved:
    """A file's values over the defaults; origins are those of the fields that it sets."""
    section = read_section(path)
    known, unknown = _sort_out(section)
    for name, value in known.items():
        known[name] = check(f"{path}: {SECTION}.{name}", value, SETTINGS[name].kind)
    config = FaultToleranceConfig(**known)
    if unknown and not is_lenient:
        only_options = [
            f"{name!r} is set by --ft-{name.replace('_', '-')} alone"
            for name in unknown
            if hasattr(args, f"ft_{name}")
        ]
        remedy = f"correct or remove {'it' if len(unknown) == 1 else 'them'}"
        problem = f"{path}: {SECTION}: {describe_unknown(unknown)}"
        raise ConfigError("; ".join([problem, *only_options, remedy]))
    warnings = [f"{path}: {SECTION}.{text}" for text in _former(section)]
    if unknown:
        warnings.insert(0, f"{path}: {SECTION}: {describe_unknown(unknown)}; ignored")
    return Resolved(config, dict.fromkeys(known, f"file {path}"), warnings)


def _meant_section(keys: tuple[str, ...]) -> str:
    """A hint from the keys of a file without the section."""
    alike = nearest(SECTION, keys)
    if alike is not None and alike != SECTION:
        return f"; did you mean {SECTION!r} by {alike!r}?"
    outside = [key for key in keys if key in SETTINGS or key in _FORMER_NAMES]
    if outside:
        return f"; {', '.join(map(repr, outside))} must stand below it, indented"
    return ""


def doubts(config: FaultToleranceConfig) -> list[str]:
    """Warnings of values that are accepted, and that are probably mistakes."""
    found = []
    if config.safety_factor < 1:
        found.append(
            f"safety_factor is {config.safety_factor:g}, less than 1: a calculated timeout is "
            "shorter than the longest healthy interval it is calculated from"
        )
    return found


def _warn(warnings: list[str]) -> None:
    if not warnings:
        return
    import logging  # noqa: PLC0415 - seldom needed

    for warning in warnings:
        logging.getLogger("holdfast").warning("%s", warning)
