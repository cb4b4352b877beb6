"""Of a user: runs at the start of each Python, with the rank's variables."""

import os

os.environ["SITE_OF_RANK"] = os.environ.get("RANK", "none")
