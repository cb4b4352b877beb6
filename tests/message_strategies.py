"""Hypothesis strategies for messages, derived from their fields as the codec derives their form."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st

from holdfast.base.pure import codec
from tests.garbage import values

_JSON = st.none() | st.booleans() | st.integers() | st.text(max_size=5)


@functools.cache
def messages(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Any message, or record, of this class."""
    return _values(codec._record(kind))


def shape(kind: type[Any]) -> dict[str, st.SearchStrategy[Any]]:
    """The JSON form of one, key by key, with garbage here and there; see ``tests/garbage.py``."""
    forms = codec._record(kind).forms
    return {"op": st.just(codec._op(kind)), **{n: _nearly(form) for n, form in forms.items()}}


def _nearly(form: codec.Form) -> st.SearchStrategy[Any]:
    match form:
        case codec._OrNone():
            return st.none() | _nearly(form.form)
        case codec._Tuple():
            return st.lists(_nearly(form.form), max_size=3)
        case codec._Row():
            return st.tuples(*map(_nearly, form.forms.values())).map(list)
        case codec._Record():
            return st.fixed_dictionaries({n: _nearly(one) for n, one in form.forms.items()})
    good = _values(form).map(form.write)
    return st.sampled_from([good, good, good, good, values]).flatmap(lambda one: one)


def _values(form: codec.Form) -> st.SearchStrategy[Any]:
    match form:
        case codec.Whole():
            few = st.integers(form.least, min(form.least + 4, form.most))  # as of a small job
            return few | st.integers(form.least, form.most)
        case codec.Number():
            return st.floats(form.least, allow_nan=False, allow_infinity=False)
        case codec.Characters():
            return st.text(min_size=form.least, max_size=min(form.most, form.least + 20))
        case codec._Exactly(kind=kind) if kind is str:
            return st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
        case codec._Exactly(kind=kind) if kind is bool:
            return st.booleans()
        case codec._Exactly():
            return _JSON | st.dictionaries(st.text(max_size=5), _JSON, max_size=2)
        case codec._OneOf():
            return st.sampled_from(list(form.members.values()))
        case codec._OrNone():
            return st.none() | _values(form.form)
        case codec._Tuple():
            return st.lists(_values(form.form), max_size=4).map(tuple)
        case codec._Named():
            return st.dictionaries(st.text(max_size=20), _values(form.form), max_size=4)
        case codec._Record():
            return st.builds(form.kind, **{n: _values(one) for n, one in form.forms.items()})
    raise TypeError(form)
