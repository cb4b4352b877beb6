"""What a rank may ask of its job; the names of ``WorkloadAction`` that mean something here."""

SHUTDOWN = "ShutdownWorkload"
EXCLUDE = "ExcludeThisNode"
