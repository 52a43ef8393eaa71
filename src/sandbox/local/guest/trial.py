import ctypes
import errno
import os
import pathlib
import socket


def probe(service, port, data_dir):
    """Prints the names of what had success; nothing but `add` may."""
    libc = ctypes.CDLL(None, use_errno=True)

    def done(result):
        return result >= 0

    def io_uring():
        libc.syscall(ctypes.c_long(425), ctypes.c_long(1), None)  # the same number everywhere
        return ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM)

    def changes(path):
        before = os.stat(path).st_ctime_ns
        os.chmod(path, os.stat(path).st_mode & 0o7777)
        return os.stat(path).st_ctime_ns != before

    def of_service(attempt):
        # in a namespace of our own a low number is somebody else
        return not service <= os.getpid() <= 2 and attempt()

    probes = {
        "add": lambda: 1 + 1 == 2,
        "connect to the service's loopback": lambda: socket.create_connection(("127.0.0.1", port), 1),
        "write to /usr": lambda: os.open("/usr", os.O_TMPFILE | os.O_RDWR, 0o600),
        "read the service's data folder": lambda: os.listdir(data_dir),
        "change the service's data folder": lambda: changes(data_dir),
        "mount": lambda: done(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)),
        "ptrace": lambda: done(libc.ptrace(0, 0, 0, 0)),
        "unshare": lambda: done(libc.unshare(0x10000000)),
        "read the service's environment": lambda: of_service(
            lambda: pathlib.Path(f"/proc/{service}/environ").read_bytes()
        ),
        "become root": lambda: os.setuid(0) is None,
        "io_uring": io_uring,
        "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0),
        "signal the service": lambda: of_service(lambda: os.kill(service, 0) is None),
    }
    for name, attempt in probes.items():
        try:
            if attempt():
                print(name)
        except (OSError, AttributeError):
            pass
