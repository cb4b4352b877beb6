"""The launchers of a job: membership, restarts, and the log that they share.

``pure/member.py`` is one launcher's part, ``cycles.py`` decides for the job while ``leader.py``
finds that this launcher may, ``membership.py`` has their messages, ``member_messages.py`` and
``leader_messages.py`` those between the machines of one launcher, ``timing.py`` all times of their
protocol and their order. Helpers of the member: ``leader_watch.py`` the silence of its leader,
``beats.py`` when it answers. Helpers of the leader: ``leader_beats.py`` when it sends a beat, and
which news, ``nodes.py`` the launchers that are there, ``forming.py`` when the next cycle begins,
``running.py`` whether the one that runs continues, ``restarts.py`` whether there is another,
``rounds.py`` which launchers a round gives a vote, ``takeover.py`` the job of the leader before,
``leader_lease.py`` how long it may lead, ``lapse.py`` how long it waits for its lease,
``incidents.py`` evidence of all ranks when one hangs, ``job_snapshots.py`` with ``state_choice.py``
the snapshot that a cycle begins from, and with ``keeping.py`` the steps kept at other nodes,
``assign.py`` the ranks of each node, ``rules.py`` the job's configuration, ``workload.py`` and
``job_admission.py`` which launchers belong to it, and which come after its end, ``job_words.py``
its facts in words, ``exit_codes.py``.
"""
