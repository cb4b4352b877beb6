"""Between processes: one epoll loop, framed connections, addresses and ports.

Read first: ``loop.py``, ``server.py``, ``channel.py``, ``client.py``, ``endpoint.py``;
``pure/frames.py`` (length-prefixed JSON), ``pure/handshake.py``.
"""
