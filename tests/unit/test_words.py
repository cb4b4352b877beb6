"""Every text that a process of a job can print, read against a list of phrases.

The texts are collected from the code: all of them outside docstrings, those of f-strings with
``{}`` for a value and ``{N}`` for a constant. An engineer reads a log line once, at 3 a.m.: the
subject first, an active verb, the field's word for the thing, the right plural.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

import pytest

from holdfast.tools.log_lines import EXPLANATIONS, pattern_of
from tests.unit.test_docs import PAGES, ROOT, built, prose

BANNED = {
    r"\b(some|any|every|no)body\b|\b(some|every)one\b": "name the process or the person",
    r"\bwhoever\b|(^|[.;:] )who\b(?!.*\?)": "a clause needs a subject: 'a node that joins late'",
    r"\bwhat (is|was|were|cannot|can|breaks|takes|comes|ranks|pickle|JSON)\b": (
        "a clause needs a subject: 'the ranks that', 'the value'"
    ),
    r"(?<!there )\b(is|are|was|were) no (?!longer\b)": "'is not a', 'is not the'",
    r"\b(is|are|was|were|be|been) told\b": "name the process that reports, and to which",
    r"\b(hears?|heard|hear)\b": "processes receive messages; they are silent, or do not answer",
    r"\b(we|us|our|ours)\b": "name the process: the launcher, holdfast, this rank",
    r"\ball the same\b": "'anyway'",
    r"\bno use\b": "'would not help'",
    r"\bmakes? no sense\b": "'cannot be used', and why",
    r"\bwithout a word\b|\bgoodbye\b|\bhung up\b": "'closed the connection', 'no shutdown'",
    r"\b(its|another|earlier|this|each) life\b|\blives? of\b": "a start of the job, a cycle",
    r"\blooks? after\b|\bneeds? a look\b|\btakes care\b": "say what it does: checks, monitors",
    r"\bkin\b|\bbur(y|ied|ies)\b|\bseats?\b|\blet go\b|\bsick\b|\bnot well\b": "the field's word",
    r"\b(go(es)?|going|went) on\b": "continues, continued",
    r"\b(is|are|was|were|be) looked at\b|\bcannot look at\b": "inspected, checked",
    r"\b(is|are|was|were|also|not) overdue\b|(^|; )overdue: ": "timed out",
    r"\bpass(ed|es) over\b": "ignored",
    r"\bend(s|ed)? (its|the|all) (other )?ranks\b|\bends itself\b": (
        "a process is killed, or stopped (SIGTERM first)"
    ),
    r"\b(ranks?|processes|they|it) (is|are|was|were) ended\b|\bended by (its|the)\b": "killed",
    r"\bended with (exit code|code|0)\b": "exited with code",
    r"\bstand(s|ing)? by\b|\bstandby node\b": "'waits as a spare'",
    r"\(s\)|\(es\)": "holdfast.base.pure.wording.count() knows the plural",
}
"""Regular expressions, upper or lower case, and the better way to write it."""

COUNTED = (
    "rank|node|process|thread|launcher|cycle|restart|section|request|connection|iteration|link|"
    "segment|domain|store|file|argument|error|warning|attempt|fabric|row|page"
)
"""Things that a number in a message may count; one of them is not 'ranks'."""
_PLURAL = re.compile(rf"(?<!of )\{{\}} (more |parked |other )?(({COUNTED})s|processes|times)\b")


AT_LEAST_TWO = (
    ("options/cluster_env.py", "{} gave this job {} nodes"),
    ("options/cluster_env.py", "Slurm starts {} launchers on a node"),
    ("options/cluster_env.py", "this Slurm step has {} of the job's {} nodes"),
    ("inplace/pure/escalation.py", "hung by itself in {} iterations in a row"),
    ("tools/doctor/advice.py", "at most {} processes and threads"),
    ("job/pure/leader.py", "no progress"),
    ("node/reporter.py", "Worker group FAILED. {}/{} attempts left"),
    ("options/plan.py", "OMP_NUM_THREADS is not set; each of the {} ranks"),
)
"""Messages whose number is never one, by module and beginning."""


def docstrings(tree: ast.AST) -> Iterator[ast.expr]:
    """Texts that are statements: docstrings, also of variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            yield node.value


def placeholder(value: ast.expr) -> str:
    """``{N}`` for a constant of a module, whose number its author knew; otherwise ``{}``."""
    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    return "{N}" if name.isupper() else "{}"


def texts_of(source: str) -> Iterator[str]:
    """The texts of a module, in one line each."""
    tree = ast.parse(source)
    seen = {id(node) for node in docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = []
            for part in node.values:
                if isinstance(part, ast.FormattedValue):
                    parts.append(placeholder(part.value))
                    if part.format_spec is not None:
                        seen.update(id(each) for each in ast.walk(part.format_spec))
                elif isinstance(part, ast.Constant):
                    parts.append(str(part.value))
                    seen.add(id(part))
            if id(node) not in seen:
                yield " ".join("".join(parts).split())
        elif (
            isinstance(node, ast.Constant) and id(node) not in seen and isinstance(node.value, str)
        ):
            yield " ".join(re.sub(r"%[dsrg]", "{}", node.value).split())


def is_message(text: str) -> bool:
    """It has words, and is not code for another interpreter."""
    return len(re.findall(r"[A-Za-z]{2,}", text)) >= 2 and " " in text and "import " not in text


@functools.cache
def messages() -> list[tuple[str, str]]:
    """Module and text of all that can be printed, without what tests and simulations print.

    And without the list of lines of the log, which docs/messages.md shows.
    """
    found = []
    for room in (ROOT / "src" / "holdfast", ROOT / "compat" / "src" / "nvidia_resiliency_ext"):
        for path in sorted(room.rglob("*.py")):
            module = path.relative_to(room).as_posix()
            if module.startswith(("testing/", "tools/log_lines.py")):
                continue
            texts = texts_of(path.read_text(encoding="utf-8"))
            found += [(module, text) for text in texts if is_message(text)]
    return found


def test_the_texts_of_a_module_are_read() -> None:
    """Constants, f-strings and those with %d; no docstrings, no code."""
    source = '''"""A docstring is read elsewhere."""
LIMIT = 3
"""So is this."""
def f(n, log):
    log.warning("rank %d of %s: gone", n, f"{n} ranks, limit {LIMIT} s")
    raise ValueError("a bad "
                     "value")
'''
    assert sorted(texts_of(source)) == [
        "a bad value",
        "rank {} of {}: gone",
        "{} ranks, limit {N} s",
    ]
    assert len(messages()) > 900


@pytest.mark.parametrize("phrase", BANNED)
def test_no_message_has_a_banned_phrase(phrase: str) -> None:
    found = [each for each in messages() if re.search(phrase, each[1], re.IGNORECASE)]
    assert found == [], BANNED[phrase]


def test_a_number_goes_with_the_right_plural() -> None:
    """``count(n, "rank")`` writes '1 rank' and '2 ranks'; '3 of 4 ranks' needs no help."""
    found = [
        (module, text)
        for module, text in messages()
        if _PLURAL.search(text)
        and not any(module == where and text.startswith(head) for where, head in AT_LEAST_TWO)
    ]
    assert found == []


@pytest.mark.parametrize("page", [page for page in PAGES if "decisions/" not in page])
def test_no_page_has_a_banned_phrase(page: str) -> None:
    """Prose and tables; code shows output, and a decision is left as it was written."""
    lines = built(page).splitlines()
    tables = [line for line in lines if line.startswith("|")]
    text = re.sub(r"`[^`]*`", "", " ".join([*prose("\n".join(lines)), *tables]))
    found = [
        (match[0], text[max(0, match.start() - 40) : match.end() + 40])
        for phrase in BANNED
        for match in re.finditer(phrase, text, re.IGNORECASE)
    ]
    assert found == []


# ---------------------------------------------------------------- the page of messages
PHRASES = [phrase for rows in EXPLANATIONS.values() for row in rows for phrase in row.phrases]


@pytest.mark.parametrize("phrase", PHRASES)
def test_words_that_the_page_of_messages_explains_are_in_a_message(phrase: str) -> None:
    """``...`` stands for values. A message that was worded anew needs its new words there."""
    assert any(pattern_of(phrase).search(text) for _, text in messages())
