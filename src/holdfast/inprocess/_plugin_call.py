"""Call a plug-in the way it was written, for either generation of the interface.

How a plug-in wants to be called is found out once, from its signature, when the Wrapper is made; a
plug-in that cannot be called is a ``TypeError`` then. Of a ``Compose``, each instance is called in
its own manner, so both generations can be mixed.

    family                          second generation          first generation
    initialize, abort               (state: FrozenState)       (state)
    finalize, health_check          (state: FrozenState)       (state, exception or None)
    completion, terminate           (state: FrozenState)       -
    rank_assignment                 (ctx)                      (state, set of ranks)
    rank_filter                     (ctx)                      (state)

A parameter that is not annotated as ``FrozenState`` gets the :class:`State` itself, which has all
that a FrozenState has. A plug-in with ``*args`` gets all arguments; one without parameters, none.
"""

from __future__ import annotations

import enum
import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.base.pure.wording import count
from holdfast.base.rank_log import rank_logger
from holdfast.inprocess.compose import Compose, positional_capacity, warn_if_none
from holdfast.inprocess.exception import RestartError
from holdfast.inprocess.rank_assignment import RankAssignmentCtx
from holdfast.inprocess.state import FIELDS, Mode, State

if TYPE_CHECKING:
    from holdfast.inprocess._arguments import WrapperArguments

log = rank_logger(__name__)

Plugin = Callable[..., Any]


class Takes(enum.Enum):
    """The arguments of a plug-in."""

    NOTHING = "()"
    FROZEN = "(state)"
    STATE = "(State)"
    STATE_AND_MORE = "(State, exception or terminated ranks)"
    CTX = "(ctx)"


@dataclass(frozen=True)
class _Leaf:
    """One plug-in that is no Compose, and the arguments that it wants."""

    plugin: Plugin
    takes: Takes
    is_one_of_many: bool

    def call(self, state: State, more: object, ctx: RankAssignmentCtx | None = None) -> Any:
        given: tuple[Any, ...]
        match self.takes:
            case Takes.NOTHING:
                given = ()
            case Takes.FROZEN:
                given = (state.freeze(),)
            case Takes.STATE:
                given = (state,)
            case Takes.STATE_AND_MORE:
                given = (state, more)
            case Takes.CTX:
                given = (ctx,)
        result = self.plugin(*given)
        if self.is_one_of_many:  # as Compose does; alone, its result has no reader
            warn_if_none(self.plugin, given, result)
        return result


def _leaves(plugin: Plugin | None, takes: Callable[[Plugin], Takes]) -> list[_Leaf]:
    """In the order in which they are called."""
    plugins = [] if plugin is None else _instances(plugin)
    return [_Leaf(each, takes(each), len(plugins) > 1) for each in plugins]


def _instances(plugin: Plugin) -> list[Plugin]:
    # A subclass of Compose that calls in its own way is one plug-in.
    if isinstance(plugin, Compose) and type(plugin).__call__ is Compose.__call__:
        return [leaf for part in reversed(plugin.instances) for leaf in _instances(part)]
    return [plugin]


def _need_callable(family: str, plugin: Plugin, most: int) -> None:
    needed, _ = positional_capacity(plugin)
    try:
        parameters = inspect.signature(plugin).parameters.values()
    except (TypeError, ValueError):
        return
    keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if keywords:
        raise TypeError(
            f"{family}: {plugin!r} cannot be called: it needs {', '.join(keywords)} by keyword"
        )
    if needed > most:
        raise TypeError(
            f"{family}: {plugin!r} cannot be called: it takes {count(needed, 'argument')}, and "
            f"gets at most {most}"
        )


def _first_parameter(plugin: Plugin) -> tuple[str, set[str]]:
    """Name, and words of the annotation, of the first parameter."""
    try:
        parameters = list(inspect.signature(plugin).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    if not parameters or parameters[0].kind is inspect.Parameter.VAR_POSITIONAL:
        return "", set()
    first = parameters[0]
    if first.annotation is inspect.Parameter.empty:
        return first.name, set()
    return first.name, set(re.findall(r"\w+", inspect.formatannotation(first.annotation)))


_GET_THE_EXCEPTION = ("finalize", "health_check")
_ALL_ARE_CALLED: dict[str, tuple[type[BaseException], ...]] = {
    "abort": (BaseException,),  # in a thread of the wrapper's: no Ctrl-C arrives there
    "finalize": (Exception,),
    "completion": (Exception,),
    "terminate": (Exception,),
}
"""Families whose plug-ins clean up: after one that raises this, the next one is called, too. A
health check that fails is the answer, and initialize has to be whole."""


class StatePlugin:
    """A plug-in that is called with the rank's state, and maybe with its function's exception.

    ``family`` is the Wrapper's argument; the plug-in may be a Compose of several. TypeError: one of
    them cannot be called so.
    """

    def __init__(self, family: str, plugin: Plugin) -> None:
        self.family = family
        self.leaves = _leaves(plugin, functools.partial(_state_takes, family))

    def __call__(self, state: State) -> None:
        """Call all; a :class:`State` that one gives back is adopted.

        The first exception is raised. Of ``initialize`` and ``health_check``, plug-ins after it are
        not called; of the others they are, and their exceptions are logged.
        """
        goes_on_after = _ALL_ARE_CALLED.get(self.family, ())
        first: BaseException | None = None
        exception = state.fn_exception
        for leaf in self.leaves:
            try:
                result = leaf.call(state, exception)
                _adopt(state, result[0] if isinstance(result, tuple) and result else result)
                match result:
                    case tuple((_, None | Exception() as other)) if (
                        leaf.takes is Takes.STATE_AND_MORE
                    ):
                        exception = other
            except goes_on_after as error:
                if first is None:
                    first = error
                else:
                    log.exception("%s: %r failed, too", self.family, leaf.plugin)
        if first is not None:
            raise first


def _state_takes(family: str, leaf: Plugin) -> Takes:
    gets_exception = family in _GET_THE_EXCEPTION
    _need_callable(family, leaf, 2 if gets_exception else 1)
    needed, most = positional_capacity(leaf)
    if not most:
        return Takes.NOTHING
    is_second_generations = "FrozenState" in _first_parameter(leaf)[1]
    if gets_exception and (needed == 2 or (most >= 2 and not is_second_generations)):
        return Takes.STATE_AND_MORE
    return Takes.FROZEN if is_second_generations else Takes.STATE


class AssignmentPlugin:
    """RankAssignment and RankFilter, in one pass; TypeError: one cannot be called so."""

    def __init__(self, rank_assignment: Plugin | None, rank_filter: Plugin | None = None) -> None:
        self.assignments = _leaves(
            rank_assignment, lambda leaf: _assignment_takes("rank_assignment", leaf, Takes.CTX)
        )
        self.filters = _leaves(
            rank_filter, lambda leaf: _assignment_takes("rank_filter", leaf, Takes.STATE)
        )

    def __call__(self, state: State, store: Any, terminated_ranks: set[int]) -> None:
        """Change ``state``: numbers, mode, active numbers.

        Where no plug-in has chosen, all are active; a ``rank_filter`` starts from there.

        Args:
            state: Of this rank.
            store: Of the coming iteration; has ``gather``.
            terminated_ranks: Numbers, before this, of ranks that are lost or have left.

        Raises:
            RankDiscarded: This rank has no place.
            RestartError: Lost ranks were not taken out, or the numbers cannot be.
        """
        world_before = state.world_size
        state.mode_was_set = False
        ctx = RankAssignmentCtx(state, store, set(terminated_ranks))
        for leaf in self.assignments:
            _call_assignment(leaf, ctx)
        last_takes = self.assignments[-1].takes if self.assignments else Takes.STATE_AND_MORE
        _check_all_taken_out(ctx, world_before, strict=last_takes is Takes.STATE_AND_MORE)
        if not state.mode_was_set:
            state.activate_all_ranks()
        for leaf in self.filters:
            _call_assignment(leaf, ctx)
        _check_numbers(state)


def _assignment_takes(family: str, leaf: Plugin, usual: Takes) -> Takes:
    _need_callable(family, leaf, 2)
    needed, most = positional_capacity(leaf)
    if needed == 2:
        return Takes.STATE_AND_MORE
    if not most:
        return Takes.NOTHING
    name, annotation = _first_parameter(leaf)
    if "RankAssignmentCtx" in annotation or name == "ctx":
        return Takes.CTX
    if most > 1 and family == "rank_assignment":
        return Takes.STATE_AND_MORE
    if "State" in annotation or name == "state":
        return Takes.STATE
    return usual


def _call_assignment(leaf: _Leaf, ctx: RankAssignmentCtx) -> None:
    result = leaf.call(ctx.state, ctx.terminated_ranks, ctx)
    if isinstance(result, RankAssignmentCtx):
        if result is not ctx:
            _adopt(ctx.state, result.state)
            ctx.terminated_ranks = result.terminated_ranks
    elif isinstance(result, tuple) and len(result) == 2:
        _adopt(ctx.state, result[0])
        ctx.terminated_ranks = set(result[1])
    else:
        _adopt(ctx.state, result)


def _check_all_taken_out(ctx: RankAssignmentCtx, world_before: int, *, strict: bool) -> None:
    """The second generation may leave names in the set, but not ranks in the world."""
    left = ctx.terminated_ranks
    if left and (strict or ctx.state.world_size + len(left) > world_before):
        raise RestartError(
            f"rank_assignment left {len(left)} terminated ranks in place, the first is "
            f"{min(left)}: put an assignment such as ShiftRanks() first in Compose, where it is "
            "called last"
        )


def _check_numbers(state: State) -> None:
    world, active_world = state.world_size, state.active_world_size
    if not 0 <= state.rank < world:
        raise RestartError(f"rank_assignment made this rank {state.rank} of {world}")
    if state.mode is Mode.ACTIVE and (
        state.active_rank is None
        or active_world is None
        or not 0 <= state.active_rank < active_world <= world
    ):
        raise RestartError(
            f"rank_assignment made this rank active, as {state.active_rank} of {active_world} "
            f"active ranks, {world} in all"
        )


def _adopt(state: State, result: object) -> None:
    """Take over another mutable state, with attributes that a plug-in has added to it."""
    if isinstance(result, State) and result is not state:
        was_set = state.mode_was_set or result.mode_was_set
        state.copy_from(result)
        state.mode_was_set = was_set
        for name, value in vars(result).items():
            if name not in (*FIELDS, "kept", "mode_was_set"):
                setattr(state, name, value)


class Plugins:
    """The user's plug-ins, each to be called with a state, whatever its generation."""

    def __init__(
        self, a: WrapperArguments, restart_health_check: Callable[..., Any] | None
    ) -> None:
        self.initialize = _state_plugin("initialize", a.initialize)
        self.health_check = _state_plugin("health_check", a.health_check)
        self.restart_health_check = _state_plugin("health_check", restart_health_check)
        self.abort = _state_plugin("abort", a.abort)
        self.finalize = _state_plugin("finalize", a.finalize)
        self.completion = _state_plugin("completion", a.completion)
        self.terminate = _state_plugin("terminate", a.terminate)
        self.assign = AssignmentPlugin(a.rank_assignment, a.rank_filter)


def _state_plugin(family: str, plugin: Callable[..., Any] | None) -> Callable[[State], None]:
    return StatePlugin(family, plugin) if plugin is not None else lambda _state: None
