"""``python -m nvidia_resiliency_ext.shared_utils.wait_daemon PIDFILE``; see holdfast's module."""

import sys

import holdfast.inprocess.wait_daemon as _original
from holdfast.inprocess.wait_daemon import main

if __name__ == "__main__":
    sys.exit(main())
sys.modules[__name__] = _original
