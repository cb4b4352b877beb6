"""``holdfast doctor``: mistakes of a job before it is started, and the cost of its faults.

command.py   command line and exit code
host.py      facts about this host and its network, looked up within bounds
advice.py    their meaning for a job (pure)
limits.py    timeouts of holdfast beside torch's own (pure)
faults.py    each kind of fault, with times (pure)
losses.py    the training that a loss costs (pure)
earlier_run.py  numbers of the script's last run
page.py      text and JSON (pure)
"""
