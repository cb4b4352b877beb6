"""Which parameters get the CallWrapper, however the function says so."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any, Optional, Union

import pytest

from holdfast.inprocess._inject import injection


class CallWrapper:
    """Stands for the real one."""


WRAPPER = CallWrapper()


def annotated(annotation: Any, name: str = "here") -> Callable[..., Any]:
    namespace: dict[str, Any] = {"annotation": annotation}
    source = f"def fn(first, {name}: annotation = 'default'): return {name}"
    exec(compile(source, "user.py", "exec", dont_inherit=True), namespace)
    return namespace["fn"]


@pytest.mark.parametrize(
    "annotation",
    [
        CallWrapper,
        Optional[CallWrapper],  # noqa: UP045
        CallWrapper | None,
        Union[int, CallWrapper],  # noqa: UP007
        Union[int, Optional[CallWrapper]],  # noqa: UP007, UP045
        Annotated[CallWrapper, "documented"],
        "CallWrapper",
        "inprocess.CallWrapper",
        "Optional[CallWrapper]",
        "typing.Optional[inprocess.CallWrapper]",
        "CallWrapper | None",
        "None | 'CallWrapper'",
        "Union[int, CallWrapper]",
        Optional["CallWrapper"],
    ],
    ids=str,
)
def test_an_annotation_with_the_class_gets_it(annotation) -> None:
    """As an object, or as text that cannot be evaluated where the function is."""
    fn = annotated(annotation)
    args, kwargs = injection(fn, CallWrapper).bind((1,), {}, WRAPPER)

    assert fn(*args, **kwargs) is WRAPPER


@pytest.mark.parametrize(
    "annotation",
    [
        int,
        object,
        Any,
        Optional[Any],  # noqa: UP045
        Callable[[CallWrapper], None],
        list[CallWrapper],
        type[CallWrapper],
        "list[CallWrapper]",
        "Callable[[CallWrapper], None]",
        "NotThere",
        "not even (python",
        "OtherCallWrapper",
        None,
        3,
    ],
    ids=str,
)
def test_another_annotation_does_not(annotation) -> None:
    """Nor does it raise."""
    fn = annotated(annotation)
    found = injection(fn, CallWrapper)

    assert found.names == ()
    assert found.bind((1,), {"here": 2}, WRAPPER) == ((1,), {"here": 2})


@pytest.mark.parametrize(
    ("annotation", "gets_it"),
    [
        (Any, True),
        (Optional[Any], True),  # noqa: UP045
        (object, True),
        ("Optional[Any]", True),
        ("NotThere", True),
        (int, False),
        (Optional[int], False),  # noqa: UP045
        (dict[str, Any], False),
    ],
)
def test_one_name_gets_it_where_nothing_is_passed_and_its_annotation_allows_it(
    annotation, gets_it
) -> None:
    """``inprocess_call_wrapper: Optional[Any] = None`` is how a large user asks for it."""
    fn = annotated(annotation, "inprocess_call_wrapper")
    found = injection(fn, CallWrapper)

    args, kwargs = found.bind((1,), {}, WRAPPER)
    assert (fn(*args, **kwargs) is WRAPPER) is gets_it
    for given in (((1, "mine"), {}), ((1,), {"inprocess_call_wrapper": "mine"})):
        args, kwargs = found.bind(*given, WRAPPER)
        assert fn(*args, **kwargs) == "mine"


def test_that_name_without_annotation_gets_it_and_others_stay_what_they_are() -> None:
    """A function may mean something else by a parameter ``call_wrapper``."""

    def fn(call_wrapper, nvrx_call_wrapper, inprocess_call_wrapper, *, holdfast_call_wrapper=4):
        return call_wrapper, nvrx_call_wrapper, inprocess_call_wrapper, holdfast_call_wrapper

    args, kwargs = injection(fn, CallWrapper).bind((1, 2), {}, WRAPPER)
    assert fn(*args, **kwargs) == (1, 2, WRAPPER, 4)


def test_string_annotations_are_resolved_where_the_function_is() -> None:
    """This module has them everywhere; a local class is found by closure, or by its name."""

    def fn(a: int, /, b: Optional[CallWrapper] = None, *rest: int, c: CallWrapper, **more: Any):  # noqa: UP045
        return a, b, rest, c, more

    found = injection(fn, CallWrapper)
    args, kwargs = found.bind((1, "given", 3), {"c": "given", "d": 4}, WRAPPER)

    assert found.names == ("b", "c")
    assert fn(*args, **kwargs) == (1, WRAPPER, (3,), WRAPPER, {"d": 4})


def test_defaults_come_first_and_are_overwritten() -> None:
    """Also where an argument was passed."""

    def fn(a: int = 1, b: int = 2, w: CallWrapper | None = None):
        return a, b, w

    found = injection(fn, CallWrapper)
    for given in ((), (1,), (1, 2), (1, 2, "mine")):
        args, kwargs = found.bind(given, {}, WRAPPER)
        assert fn(*args, **kwargs) == (1, 2, WRAPPER)


def test_methods_partials_and_wrapped_functions_are_looked_through() -> None:
    """The signature that counts is the one the caller sees."""

    class Trainer:
        def train(self, w: CallWrapper):
            return w

        def __call__(self, w: CallWrapper):
            return w

    def decorated(fn):
        @functools.wraps(fn)
        def inner(*args, **kwargs):
            return fn(*args, **kwargs)

        return inner

    def two(a: int, w: CallWrapper):
        return w

    for fn, given in [
        (Trainer().train, ()),
        (Trainer(), ()),
        (functools.partial(two, 1), ()),
        (decorated(two), (1,)),
    ]:
        args, kwargs = injection(fn, CallWrapper).bind(given, {}, WRAPPER)
        assert fn(*args, **kwargs) is WRAPPER


def test_a_missing_argument_is_the_functions_own_error() -> None:
    """It says which."""

    def fn(needed, inprocess_call_wrapper):
        raise AssertionError

    args, kwargs = injection(fn, CallWrapper).bind((), {}, WRAPPER)
    with pytest.raises(TypeError, match="needed"):
        fn(*args, **kwargs)


def test_a_callable_without_a_signature_gets_nothing() -> None:
    """And is called as it is."""
    found = injection(dict, CallWrapper)
    assert found.bind((), {"a": 1}, WRAPPER) == ((), {"a": 1})


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((1, 2), {}, (1, 2)),
        ((1,), {}, (1, 5)),
        ((), {"cfg": 1}, (1, 5)),
        ((None, 1), {}, (1, 5)),
        ((None, 1, 2), {}, (1, 2)),
        (("it", 1, 2), {}, (1, 2)),
        ((WRAPPER, 1), {}, (1, 5)),
        ((None,), {}, (None, 5)),
        ((1,), {"call": None}, None),
        ((None,), {"cfg": 1}, (1, 5)),
        ((3,), {"call": None, "steps": 2}, None),
    ],
)
def test_a_first_parameter_may_be_left_out_or_given_something(args, kwargs, expected) -> None:
    """Type checkers see the function without it; other programs pass None, or anything."""

    def fn(call: CallWrapper, cfg: object, steps: int = 5):
        assert call is WRAPPER
        return cfg, steps

    found = injection(fn, CallWrapper)
    if expected is None:
        with pytest.raises(TypeError, match="multiple values for argument 'call'"):
            found.bind(args, kwargs, WRAPPER)
        return
    args, kwargs = found.bind(args, kwargs, WRAPPER)
    assert fn(*args, **kwargs) == expected


def test_the_signature_that_callers_see_has_no_injected_parameters() -> None:
    """None where nothing is injected."""

    def fn(a: int, call: CallWrapper, *, b: int = 2): ...

    assert str(injection(fn, CallWrapper).remaining) == "(a: 'int', *, b: 'int' = 2)"
    assert injection(lambda a: a, CallWrapper).remaining is None
