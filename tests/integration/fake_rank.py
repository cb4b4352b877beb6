"""A rank that does what it is told, line by line, on the contract itself (no client).

Reads Python statements from stdin, runs each, answers with one line. What they may use: ``call``
(request to the monitor), ``arm``, ``words``, ``page`` (the layout), ``now``.
"""

# ruff: noqa: PLW0603, BLE001, SIM115, PTH123 - a puppet of its test, with one state for all lines

import faulthandler
import os
import signal
import socket
import sys
import threading
from time import monotonic as now

from holdfast.base.processes.proc import start_ticks
from holdfast.net.pure.frames import Decoder, encode
from holdfast.page.page import map_page
from holdfast.page.pure import page

INF = float("inf")
connection = socket.socket(socket.AF_UNIX)
decoder = Decoder()
mapped = words = welcome = None


def call(**message):
    """Ask the monitor and return its answer."""
    connection.sendall(encode(message))
    while True:
        data = connection.recv(65536)
        if not data:
            raise EOFError
        for answer in decoder.feed(data):
            return answer


def connect(path, rank=3, **more):
    """Say hello and map the page that the monitor names."""
    global connection, mapped, words, welcome
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    welcome = call(
        op="hello", version=1, rank=rank, local_rank=0, host="here", pid=os.getpid(), **more
    )
    if welcome["op"] == "welcome" and mapped is None:
        mapped = map_page(welcome["page"], writable=True)
        words = mapped.words


def store_limits(initial=INF, subsequent=INF, outside=INF, sections=None, learned=0.0):
    """Write limits as the client does."""
    words[page.LIMITS_VERSION] += 1
    mapped.store_names(list(sections or {}))
    words[page.LIMIT_INITIAL] = initial
    words[page.LIMIT_HEARTBEAT] = subsequent
    words[page.LIMIT_OUTSIDE] = outside
    words[page.LEARNED_HEARTBEAT] = learned
    for i, limit in enumerate((sections or {}).values()):
        words[page.slot(i) + page.LIMIT] = limit
    words[page.LIMITS_VERSION] += 1


def arm(dump=True, hears=True, **limits):
    """Fill in the page and ask to be watched; the answer need not be heard."""
    if dump:
        signum = signal.SIGRTMIN + 7
        faulthandler.register(signum, open(welcome["dump"], "a"), all_threads=True)
        words[page.DUMP_SIGNAL] = float(signum)
    words[page.PID] = float(os.getpid())
    words[page.START_TICKS] = float(start_ticks(os.getpid()))
    words[page.GLOBAL_RANK] = 3.0
    store_limits(**limits)
    words[page.OUTSIDE_SINCE] = now()
    words[page.HEARTBEAT_AT] = 0.0
    words[page.ARMED_AT] = now()
    if not hears:
        return connection.sendall(encode({"op": "armed"}))
    return call(op="armed")["op"]


def stuck_in_a_function_with_a_name():
    """After a heartbeat: nothing that is slow comes between the two."""
    words[page.HEARTBEAT_AT] = now()
    threading.Event().wait(1000)


for line in sys.stdin:
    result = None
    try:
        try:
            code = compile(line, "<told>", "eval")
        except SyntaxError:
            exec(line)
        else:
            result = eval(code)
    except Exception as error:
        result = error
    print(repr(result), flush=True)
