"""Every public name of nvidia-resiliency-ext, and whether this installation has it.

The list follows the specification. ``tests/unit/test_compat_surface.py`` and ``check_install.py``
read it.
"""

from __future__ import annotations

import datetime as dt
import importlib
import inspect
import logging
import signal

PACKAGE = "nvidia_resiliency_ext"
CLASS, ENUM, MODULE, VALUE = "class", "enum", "module", "value"
_CALLBACK = (
    "(autoresume, calculate_timeouts, simulated_fault_params=None, exp_dir=None, "
    "logger_name='nemo_logger.FaultToleranceCallback'"
)
WITH_LIGHTNING = "ptl_resiliency"
"""Importing modules below this one needs Lightning."""

SURFACE: dict[str, dict[str, str]] = {
    # ------------------------------------------------------------ specification: fault-tolerance §1
    "fault_tolerance": {
        "FaultToleranceConfig": CLASS,
        "WorkloadAction": ENUM + " Continue ExcludeThisNode ShutdownWorkload",
        "WorkloadControlRequest": "(action, description='<not set>')",
        "RankMonitorClient": "()",
        "RankMonitorClientError": CLASS,
        "RankMonitorServer": CLASS,
        "InvalidStateTransitionException": CLASS,
        "RankMonitorState": ENUM
        + " UNINITIALIZED INITIALIZE HANDLING_START HANDLING_PROCESSING HANDLING_COMPLETED"
        " FINALIZED ABORTED",
        "RankMonitorStateMachine": "(logger)",
    },
    "fault_tolerance.config": {
        "FaultToleranceConfig": "(workload_check_interval=5.0, "
        "initial_rank_heartbeat_timeout=3600.0, rank_heartbeat_timeout=2700.0, "
        "rank_section_timeouts, rank_out_of_section_timeout=None, node_health_check_interval=5.0, "
        "safety_factor=5.0, rank_termination_signal=signal.SIGKILL, log_level=logging.INFO, "
        "restart_check_interval=60.0, enable_nic_monitor=False, enable_nic_healthcheck=False, "
        "enable_dist_storage_healthcheck=False, storage_healthcheck_path=None, pci_topo_file=None, "
        "link_down_path_template=None, link_state_path_template=None, skip_section_response=True, "
        "use_infra_group_rank=True, segment=None, numa_bind_strict=False, "
        "gpu_memory_reclaim_timeout=50.0, gpu_memory_tolerance_mb=512.0, "
        "gpu_memory_poll_interval=2.0, check_remaining_processes=False, max_no_progress_cycles=2, "
        "min_progress_iterations=1, checkpoint_iteration_file=None, install_exception_hook=False, "
        "num_warmup_iterations=5, attrsvc_host=None, attrsvc_port=None, "
        "attribution_endpoint=None, attribution_analysis_backend=None, "
        "attribution_export_url=None, attribution_llm_api_key_file=None, "
        "attribution_llm_base_url=None, attribution_llm_model=None, attribution_log_level=None, "
        "attribution_startup_timeout=None, attribution_stop_action=None, cycle_info_dir=None, "
        "cycle_info_job_id=None)",
        "FaultToleranceConfig.from_kwargs": "(ignore_not_recognized=True, **kwargs)",
        "FaultToleranceConfig.from_yaml_file": "(cfg_path, ignore_not_recognized=True)",
        "FaultToleranceConfig.from_args": "(args)",
        "FaultToleranceConfig.to_yaml_file": "(self, cfg_path)",
        "FaultToleranceConfig.is_progress_tracking_enabled": VALUE,
    },
    "fault_tolerance.data": {
        "FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR": VALUE,
        "FT_LAUNCHER_IPC_SOCKET_ENV_VAR": VALUE,
        "RankInfo": "(global_rank, local_rank, host, pid)",
        "RankInfo.get_for_current_rank": "()",
        "HeartbeatTimeouts": "(initial=None, subsequent=None, were_calculated=None)",
        "HeartbeatTimeouts.are_valid": VALUE,
        "SectionTimeouts": "(section, out_of_section=None, calculated_sections, "
        "is_out_of_section_calculated=False)",
        "SectionTimeouts.were_calculated": VALUE,
        "SectionTimeouts.are_valid": VALUE,
        "AuthkeyMsg": CLASS,
        "InitMsg": "(rank_info, iteration, num_warmup_iters)",
        "HeartbeatMsg": "(rank, state)",
        "SectionAction": ENUM + " OPEN CLOSE CLOSE_ALL",
        "SectionMsg": "(rank, section, action, iteration)",
        "UpdateConfigMsg": "(hb_timeouts, section_timeouts, current_cycle)",
        "OkMsg": "(cfg)",
        "ErrorMsg": "(cause)",
        "WorkloadAction": ENUM,
        "WorkloadControlRequest": CLASS,
    },
    "fault_tolerance.rank_monitor_client": {
        "RankMonitorClientError": CLASS,
        "RankMonitorClient": "()",
        "RankMonitorClient.CURRENT_TIMEOUTS_STATE_KEY": VALUE,
        "RankMonitorClient.init_workload_monitoring": "(self, num_warmup_iters=None)",
        "RankMonitorClient.shutdown_workload_monitoring": "(self)",
        "RankMonitorClient.send_heartbeat": "(self)",
        "RankMonitorClient.start_section": "(self, section)",
        "RankMonitorClient.end_section": "(self, section)",
        "RankMonitorClient.end_all_sections": "(self)",
        "RankMonitorClient.calculate_and_set_hb_timeouts": "(self, skip_if_not_ready=False)",
        "RankMonitorClient.calculate_and_set_section_timeouts": "(self, selected_sections=None, "
        "calc_out_of_section=True, skip_if_not_ready=False)",
        "RankMonitorClient.state_dict": "(self)",
        "RankMonitorClient.load_state_dict": "(self, state)",
        "RankMonitorClient.send_workload_control_request": "(self, req)",
    },
    "fault_tolerance.rank_monitor_server": {
        "RankMonitorLogger.log_restarter_event": "(self, message)",
        "RankMonitorServer.run_in_subprocess": "(cfg, ipc_socket_path, is_restarter_logger=False, "
        "mp_ctx, env=None)",
    },
    "fault_tolerance.rank_monitor_state_machine": {
        "InvalidStateTransitionException": CLASS,
        "RankMonitorState": ENUM,
        "RankMonitorStateMachine": "(logger)",
        "RankMonitorStateMachine.transition_to": "(self, new_state)",
        "RankMonitorStateMachine.can_transition_to": "(self, new_state)",
        "RankMonitorStateMachine.is_restarting": "(self)",
        "RankMonitorStateMachine.handle_heartbeat_msg": "(self)",
        "RankMonitorStateMachine.handle_section_msg": "(self)",
        "RankMonitorStateMachine.handle_ipc_connection_lost": "(self)",
        "RankMonitorStateMachine.handle_signal": "(self)",
        "RankMonitorStateMachine.periodic_restart_check": "(self)",
    },
    "fault_tolerance.timeouts_calc": {
        "TimeoutsCalcError": CLASS,
        "TimeoutsCalc": "(sections=None, start_time=None, safety_factor=5.0)",
        "TimeoutsCalc.update_on_heartbeat": "(self, hb_time=None)",
        "TimeoutsCalc.update_on_section_event": "(self, section, action, event_time)",
        "TimeoutsCalc.synchronize_all": "(self)",
        "TimeoutsCalc.can_get_hb_timeouts": "(self)",
        "TimeoutsCalc.can_get_section_timeouts": "(self, selected_sections=None, "
        "calc_out_of_section=True)",
        "TimeoutsCalc.get_hb_timeouts": "(self, current=None)",
        "TimeoutsCalc.get_section_timeouts": "(self, selected_sections=None, "
        "calc_out_of_section=True, current=None)",
    },
    "fault_tolerance.ipc_connector": {
        "IpcConnector": "(socket_path)",
        "IpcConnector.start_receiving": "(self)",
        "IpcConnector.stop_receiving": "(self)",
        "IpcConnector.fetch_received": "(self)",
        "IpcConnector.clear": "(self)",
        "IpcConnector.send": "(self, message)",
    },
    "fault_tolerance.launcher": {
        "main": "(args=None)",
        "get_args_parser": "()",
        "parse_args": "(args)",
        "config_from_args": "(args)",
        "launch_agent": "(config, entrypoint, args)",
        "parse_min_max_nnodes": "(nnodes)",
        "LaunchConfig": CLASS,
        "elastic_launch": "(config, entrypoint)",
        "LocalElasticAgent": CLASS,
        "UnhealthyNodeException": CLASS,
    },
    "fault_tolerance.utils": {
        "is_process_alive": "(pid)",
        "wait_until_process_terminated": "(pid, timeout)",
        "wait_for_mp_events": "(events, timeout)",
        "read_obj_from_ipc_stream": "(stream)",
        "write_obj_to_ipc_stream": "(obj, stream)",
        "get_infrastructure_rank": "(skip_nodename_logic=False)",
        "get_rank": "()",
        "is_slurm_job_array": "()",
        "DEFAULT_NO_RESTART_EXIT_CODE": VALUE,
    },
    "fault_tolerance.dict_utils": {
        "dict_list_map_inplace": "(f, x)",
        "dict_list_map_outplace": "(f, x)",
        "merge": "(x1, x2)",
        "diff": "(x1, x2)",
        "nested_values": "(x)",
    },
    "fault_tolerance.progress_tracker": {
        **dict.fromkeys(
            ["ProgressTracker", "TrainingProgressTracker"],
            "(min_progress_iterations, max_no_progress_cycles, checkpoint_iteration_file)",
        ),
        "TrainingProgressTracker.update_iteration": "(self, iteration)",
        "TrainingProgressTracker.analyze_previous_cycle": "(self)",
        "TrainingProgressTracker.should_terminate_early": "(self)",
    },
    "fault_tolerance.per_cycle_logs": {
        "get_cycle_log_path": "(base, cycle)",
        "PerCycleLog": "(base, cycle)",
    },
    # ------------------------------------------------------------ specification: inprocess
    "inprocess": {
        "Wrapper": "(*, store_factory, store_kwargs=None, initialize=None, abort, finalize=None, "
        "health_check=None, rank_assignment, rank_filter=None, monitor_thread_interval, "
        "monitor_process_interval, heartbeat_interval, progress_watchdog_interval, soft_timeout, "
        "hard_timeout, heartbeat_timeout, barrier_timeout, completion_timeout, last_call_wait, "
        "termination_grace_time, monitor_process_logfile=None, monitor_process_pidfile=None, "
        "enabled=True, completion=None, terminate=None)",
        "Wrapper.__call__": "(self, fn)",
        "CallWrapper.iteration": VALUE,
        "CallWrapper.ping": "(self)",
        "CallWrapper.atomic": "(self)",
        "CallWrapper.disable_hang_protection": "(self)",
        "Compose": "(*instances)",
        "State": "(rank, world_size)",
        "FrozenState": CLASS,
        "Mode": ENUM + " INITIALIZED ACTIVE INACTIVE TERMINATED",
        **dict.fromkeys(
            [
                "abort",
                "attribution",
                "compose",
                "completion",
                "exception",
                "finalize",
                "health_check",
                "initialize",
                "logging",
                "monitor_process",
                "monitor_thread",
                "nested_restarter",
                "param_utils",
                "progress_watchdog",
                "rank_assignment",
                "sibling_monitor",
                "state",
                "store",
                "terminate",
                "utils",
                "wrap",
            ],
            MODULE,
        ),
    },
    "inprocess.abort": {
        "Abort": CLASS,
        "AbortTorchDistributed": "(torch_fr_trace_path=None)",
        "AbortTransformerEngine": "()",
        "AbortPersistentCheckpointProcesses": "()",
    },
    "inprocess.attribution": {
        "Interruption": ENUM
        + " EXCEPTION BASE_EXCEPTION SOFT_TIMEOUT HARD_TIMEOUT TERMINATED UNRESPONSIVE"
        " MONITOR_PROCESS_EXCEPTION",
        "InterruptionRecord": "(rank, interruption)",
        "InterruptionRecord.from_str": "(text)",
        "format_interruption_records": "(records)",
    },
    "inprocess.compose": {"Compose": "(*instances)"},
    "inprocess.completion": {"Completion": CLASS},
    "inprocess.exception": {
        "RestartError": CLASS,
        "HealthCheckError": CLASS,
        "InternalError": CLASS,
        "TimeoutError": CLASS,
        "RestartAbort": CLASS,
    },
    "inprocess.finalize": {
        "Finalize": CLASS,
        "ThreadedFinalize": "(timeout, fn, args=(), kwargs=None)",
    },
    "inprocess.health_check": {
        "HealthCheck": CLASS,
        "CudaHealthCheck": "(timeout=dt.timedelta(seconds=30))",
        "FaultCounter": "(max_rank_faults=None)",
        "FaultCounterExceeded": CLASS,
        "ChainedGPUHealthCheck": "(device_index=None)",
        "ChainedNVLHealthCheck": "(device_index=None)",
        "ChainedNicHealthCheck": "(device_index=None)",
    },
    "inprocess.initialize": {
        "Initialize": CLASS,
        "RetryController": "(max_iterations=None, min_world_size=1, min_active_world_size=1)",
    },
    "inprocess.logging": {
        "get_logger": "(name)",
        "attach_handlers": "(logger=None)",
        "Logging": "(logger=None)",
    },
    "inprocess.monitor_process": {
        "MonitorProcess": "(rank, world_size, store_factory, store_kwargs)",
        **{f"MonitorProcess.{name}": "(self)" for name in ("start", "reset", "shutdown")},
        "MonitorProcess.record_interrupted": "(self, records)",
    },
    "inprocess.monitor_thread": {
        "RankShouldRestart": CLASS,
        "async_raise": "(tid, exc_type)",
        "reraise_if_unraisable": "(exc_type)",
        "MonitorThread": "(state, store, abort, atomic_lock, interval, last_call_wait)",
        "MonitorThread.shutdown": "(self)",
    },
    "inprocess.nested_restarter": {
        "NestedRestarterCallback": "(special_rank=0, restarter_logger)",
        "NestedRestarterLogger": "()",
        "restarter_logger": VALUE,
        "NestedRestarterHandlingCompleted": "(special_rank=0)",
        "NestedRestarterHandlingStarting": "(special_rank=0)",
        "NestedRestarterFinalized": "(special_rank=0)",
        "NestedRestarterAborted": "(special_rank=0)",
    },
    "inprocess.param_utils": {
        "substitute_param_value": "(fn, args, kwargs, subs)",
        "enforce_subclass": "(argument, class_or_tuple)",
        "enforce_type": "(argument, class_or_tuple)",
        "enforce_value": "(condition)",
    },
    "inprocess.progress_watchdog": {
        "ProgressWatchdog": "(interval)",
        **{
            f"ProgressWatchdog.{name}": "(self)"
            for name in ("ping", "reset", "pause_and_synchronize", "resume", "shutdown")
        },
    },
    "inprocess.rank_assignment": {
        "RankAssignment": CLASS,
        "RankAssignmentCtx": "(state, store, terminated_ranks)",
        "RankDiscarded": CLASS,
        "RankFilter": CLASS,
        "ShiftRanks": "()",
        "FillGaps": "()",
        "FilterCountGroupedByKey": "(key_or_fn, condition, timeout=dt.timedelta(minutes=1))",
        "FilterGroupedByKey": "(key_or_fn, condition, timeout=dt.timedelta(minutes=1))",
        "ActivateAllRanks": "()",
        "MaxActiveWorldSize": "(max_active_world_size=None)",
        "ActiveWorldSizeDivisibleBy": "(divisor=1)",
        "WorldSizeDivisibleBy": "(divisor=1)",
        "Layer": "(min_ranks=1, max_ranks=None, key_or_fn='', flag=None)",
        "LayerFlag": ENUM + " RESERVE BACKFILL",
        "Tree": "(layers, world_size_filter=None)",
    },
    "inprocess.rank_filter": {
        "RankFilter": CLASS,
        "ActivateAllRanks": "()",
        "MaxActiveWorldSize": "(max_active_world_size=None)",
        "WorldSizeDivisibleBy": "(divisor=1)",
    },
    "inprocess.sibling_monitor": {"SiblingMonitor": CLASS},
    "inprocess.state": {
        "State.from_env": "()",
        "State.freeze": "(self)",
        "State.advance": "(self)",
        "State.copy_from": "(self, other, fields)",
        "State.get_distributed_vars": "(self)",
        "State.set_distributed_vars": "(self)",
        "FrozenState": "(rank, world_size, active_rank=None, active_world_size=None, "
        "initial_rank, initial_world_size, iteration=0, mode, fn_exception=None)",
        "Mode": ENUM,
        "Status": ENUM + " INITIALIZED ACTIVE INACTIVE ABORTING ABORTED",
    },
    "inprocess.store": {
        "StoreMixin.critical_ranks": VALUE,
        **{
            f"StoreMixin.{kind}_barrier": "(self, ranks, n_ranks, timeout)"
            for kind in ("initial", "completion", "iteration", "termination")
        },
        "StoreMixin.send_heartbeat": "(self, rank)",
        "StoreMixin.get_all_heartbeats": "(self, world_size)",
        "StoreMixin.record_interrupted": "(self, records)",
        "StoreMixin.lock_interruption_records": "(self)",
        "StoreMixin.get_interruption_records": "(self)",
        "StoreMixin.record_terminated_ranks": "(self, ranks)",
        "StoreMixin.get_terminated_ranks": "(self)",
        "TCPStore": "(host_name=None, port=None, world_size=None, "
        "timeout=dt.timedelta(minutes=5), wait_for_workers, multi_tenant=False, use_libuv=True)",
        "FileStore": CLASS,
        "PrefixStore": "(iteration, store)",
        "BarrierError": CLASS,
        "BarrierTimeout": CLASS,
        "BarrierOverflow": CLASS,
    },
    "inprocess.terminate": {"Terminate": CLASS},
    "inprocess.utils": {
        "HealthCheckPassed": CLASS,
        "log_exc": "(rank_or_state, exc, name)",
        "spare_fn": "(store, progress_watchdog, interval)",
    },
    "inprocess.wrap": {"Wrapper": CLASS, "CallWrapper": CLASS},
    # ------------------------------------------------------------ specification: lightning
    "ptl_resiliency": {
        "FaultToleranceCallback": _CALLBACK + ")",
        "FaultToleranceSectionsCallback": _CALLBACK + ", exc_handling_policy=None)",
        "SimulatedFaultParams": "(fault_type, base_delay, rand_delay=0.0, rank_to_fail=None)",
    },
    "ptl_resiliency.fault_tolerance_callback": {"FaultToleranceCallback": CLASS},
    "ptl_resiliency.fault_tolerance_sections_callback": {"FaultToleranceSectionsCallback": CLASS},
    "ptl_resiliency._utils": {"is_module_available": "(name)", "SimulatedFaultParams": CLASS},
    # ------------------------------------------------------------ what clients call
    "shared_utils.inject_fault": {
        "Fault": ENUM + " GPU_ERROR GPU_SLEEP WORKLOAD_EXC ASYNC_EXC SIGNAL_EXC OS_ABORT LOCK_GIL"
        " SEGFAULT SIGINT SIGKILL SIGTERM SIGSTOP"
        " GPU ABORT GIL INT KILL TERM STOP",
        "clear_workload_exception": "()",
        "maybe_raise_workload_exception": "()",
        "dispatch_fault_injection": "(fault, delay, callback=None)",
    },
    "inprocess.tools.inject_fault": {"Fault": ENUM, "dispatch_fault_injection": "(fault, delay)"},
    "shared_utils.wait_daemon": {"main": "()"},
    "shared_utils.health_check": {
        "GPUHealthCheck": "(device_index=None)",
        "NVLHealthCheck": "(device_index=None)",
        "NicHealthCheck": "(device_index=None, pci_topo_file=None, link_down_path_template=None)",
        "NicHealthCheck.set_nic_device": "(self, local_rank)",
        "NodeHealthCheck": "(endpoint=None, request_timeout_sec=60.0)",
    },
}
"""Module to name to its kind. A signature has the parameters of the specification; holdfast's may
have more, with defaults, after those or between them, and defaults for those without one."""


def rows() -> list[tuple[str, str, str]]:
    """Module, name and kind of all names."""
    return [
        (module, name, kind) for module, names in SURFACE.items() for name, kind in names.items()
    ]


def found(module: str, name: str, package: str = PACKAGE) -> object:
    """The object of this name.

    Raises:
        ImportError, AttributeError: There is none.
    """
    value: object = importlib.import_module(f"{package}.{module}")
    for part in name.split("."):
        value = getattr(value, part)
    return value


def problem(module: str, name: str, kind: str, package: str = PACKAGE) -> str | None:
    """How this name differs from the specification; ``None``: it does not."""
    try:
        value = found(module, name, package)
    except (ImportError, AttributeError) as error:
        return str(error)
    if kind == CLASS:
        return None if inspect.isclass(value) else "is no class"
    if kind == MODULE:
        return None if inspect.ismodule(value) else "is no module"
    if kind.startswith(ENUM):
        missing = set(kind.split()[1:]) - set(getattr(value, "__members__", ()))
        return f"lacks {sorted(missing)}" if missing else None
    return None if kind == VALUE else _differs(inspect.signature(value), kind)  # type: ignore[arg-type]


def _differs(own: inspect.Signature, wanted: str) -> str | None:
    parts = [part.strip().partition("=") for part in wanted[1:-1].split(", ") if part.strip()]
    names = list(own.parameters)
    takes_any = any(each.kind is each.VAR_KEYWORD for each in own.parameters.values())
    at = -1
    for name, equals, default in parts:
        if name.startswith("*") or (name not in names and takes_any):
            continue
        if name not in names:
            return f"takes no {name}, only {names}"
        if names.index(name) < at:
            return f"takes {name} too early"
        at = names.index(name)
        if equals and own.parameters[name].default != eval(default):  # noqa: S307 - of the table above
            return f"{name} is {own.parameters[name].default!r} by default, not {default}"
    named = {name for name, _, _ in parts}
    for name, parameter in own.parameters.items():
        variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if name not in named and parameter.default is parameter.empty and not variable:
            return f"needs {name}, which the specification does not have"
    return None


def checked(*, with_lightning: bool) -> list[tuple[str, str, str]]:
    """Rows of the modules that can be imported."""
    return [each for each in rows() if with_lightning or not each[0].startswith(WITH_LIGHTNING)]


_EVALUATED = (dt, logging, signal)
"""Modules that defaults in the table name."""
