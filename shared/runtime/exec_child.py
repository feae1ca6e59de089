"""Starts one program so that it cannot outlive its parent.

    python -I -S exec_child.py SIGNAL PARENT_PID UID:GID PROGRAM [ARGUMENT...]

Runs as a script of its own, after exec, with the standard library only: a `preexec_fn` would run Python between fork and exec of a process
that has threads, which may deadlock (documentation of `subprocess`), and would rule out vfork. Costs about 25 ms per start.

Steps: become UID:GID if given (`-`: stay); ask Linux for SIGNAL when the parent dies (prctl(2), PR_SET_PDEATHSIG; after the change of user,
which would clear it); leave at once if the parent is gone already; replace itself by PROGRAM, keeping the pid. Elsewhere than on Linux a
killed parent leaves the program running.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
CANNOT_EXECUTE = 127  # as shells do


def become(user: str) -> None:
    """Give up root for `UID:GID`, with no supplementary groups."""
    if user == "-":
        return
    uid, gid = (int(part) for part in user.split(":"))
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def die_with(parent: int, death_signal: int) -> None:
    """Be sent `death_signal` when the thread that started us ends, or leave now if `parent` has ended already."""
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit(f"the parent, process {parent}, is gone")


def main(death_signal: str, parent: str, user: str, *argv: str) -> None:
    """Does not return: the process becomes `argv`, or exits with 127 and a line that says why not."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # a shell's `&` or nohup would have them ignored
    try:
        become(user)
        die_with(int(parent), int(death_signal))
        os.execv(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"cannot execute {argv[0]}: {error}\n")
        sys.exit(CANNOT_EXECUTE)


if __name__ == "__main__":
    main(*sys.argv[1:])
