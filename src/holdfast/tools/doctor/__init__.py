"""``holdfast doctor``: what is wrong with a job before it is started, and what faults will cost.

command.py   the words of the command line, and the way to the exit code
host.py      facts about this host and its network, looked up within bounds
advice.py    what those facts mean (pure)
limits.py    our limits beside torch's own timeouts (pure)
faults.py    what happens on each kind of fault, with times (pure)
page.py      how it is shown (pure)
"""
