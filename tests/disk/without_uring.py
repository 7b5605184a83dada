"""Runs a program on a kernel without io_uring: `python -m tests.disk.without_uring PROGRAM ...`.

A filter of system calls answers io_uring_setup with ENOSYS, as kernels before 5.1 do, or with EPERM
as container runtimes do. Runs in the environment of the product, so it imports nothing else.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

_IO_URING_SETUP = 425  # the same number on every architecture
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # of classic BPF, with a word and a constant


class _Program(ctypes.Structure):
    _fields_ = (("size", ctypes.c_ushort), ("code", ctypes.c_char_p))


def forbid(number: int) -> None:
    """From now on this process and its children get the error `number` for io_uring_setup."""
    steps = (
        (_LOAD, 0, 0, 0),  # the number of the system call
        (_EQUAL, 0, 1, _IO_URING_SETUP),
        (_RETURN, 0, 0, _ERRNO | number),
        (_RETURN, 0, 0, _ALLOW),
    )
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = _Program(len(steps), code)
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*call) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    forbid(getattr(errno, sys.argv[1]))
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
