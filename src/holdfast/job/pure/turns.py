"""The turns of the successors: which launcher may lead in which term, and which keeps its votes.

Pure functions of the last round, which names the successors of its leader in order. Each has one
term in turn, from the first one after the round's on. So launchers that look for the next leader
vote for the same one in the same term, and one that had too few votes has its turn again. The
leader of the round itself may lead in any later term.
"""

from __future__ import annotations

from holdfast.job.pure.membership import Round, Successor, elector


def is_one(node: str, other: str) -> bool:
    """Whether two names are of one launcher, which may have come back as another node."""
    return elector(node) == elector(other)


def may_lead(formed: Round, node: str) -> bool:
    """It is a successor, or has led before, and perhaps knows more than the others."""
    able = any(is_one(it.node, node) for it in formed.successors)
    return able or is_one(formed.leader, node)


def successor_in(formed: Round, term: int) -> Successor:
    """The one that has its turn in this term; there is one at least."""
    return formed.successors[(term - formed.term - 1) % len(formed.successors)]


def leads_in(formed: Round, term: int, node: str) -> bool:
    """Whether a launcher that may lead does so in this term."""
    if term <= formed.term:
        return False
    return is_one(formed.leader, node) or is_one(successor_in(formed, term).node, node)


def next_own_term(formed: Round, term: int, node: str) -> int:
    """The first, from this one on, in which a launcher leads that may lead."""
    while not leads_in(formed, term, node):
        term += 1
    return term


def after_out_of_turn(formed: Round, term: int) -> int:
    """The term before the one of a candidate out of turn: the next successor keeps its turn."""
    return term + len(formed.successors[1:])


def precedes(formed: Round, node: str, other: str) -> bool:
    """Whether both are successors, and ``node`` the earlier one: it keeps the votes of both."""
    order = [elector(it.node) for it in formed.successors]
    both = elector(node), elector(other)
    return all(it in order for it in both) and order.index(both[0]) < order.index(both[1])
