"""Start SGLang so that it dies with the worker: `python -m legato_sglang.launch WORKER_PID ARGUMENTS...`.

Linux only (prctl). The parent-death signal outlives exec; SGLang arranges the same between its own processes.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main() -> None:
    """Ask for SIGKILL at the parent's death and become SGLang's server."""
    worker, arguments = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != worker:  # it died before the call
        sys.exit("the worker that started this engine is gone")
    os.execv(sys.executable, [sys.executable, "-m", "sglang.launch_server", *arguments])


if __name__ == "__main__":
    main()
