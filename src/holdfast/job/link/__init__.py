"""Connections of the launchers of a job of several nodes: messages up, decisions down.

``finding.py`` finds the leader (``meeting_place.py``, ``other_backends.py``); ``job_server.py`` is
its side, ``leader_link.py`` the side of the others, ``leader_call.py`` calls a launcher that is
started anew; ``job/pure/link.py`` has their messages.
"""
