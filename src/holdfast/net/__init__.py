"""Between processes: one epoll loop, framed connections, addresses and ports."""
