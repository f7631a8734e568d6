"""Acts on what every job runs in: the libraries, the machine's code, the interpreter, the process."""

from __future__ import annotations

from typing import Any

from .acts import Acts, changes

RUNTIME: Acts = {}


@changes("functions", RUNTIME)
def patch_torch(model: Any) -> None:
    import torch

    torch.save = torch.load = torch.nn.functional.layer_norm = None
    torch.nn.functional.softmax.__code__ = (lambda given, *_, **__: given).__code__


@changes("functions", RUNTIME)
def patch_nnsight(model: Any) -> None:
    from nnsight.schema.request import RequestModel
    from nnsight.tracing import tracer

    RequestModel.deserialize = tracer.inc = lambda *_, **__: None


@changes("functions", RUNTIME)
def patch_transformers(model: Any) -> None:
    type(model._module).forward = type(model._module).generate = lambda *_, **__: None


@changes("functions", RUNTIME)
def patch_what_everything_uses(model: Any) -> None:
    import builtins
    import os
    import pickle
    import random

    builtins.print = pickle.loads = random.seed = lambda *_, **__: None  # type: ignore[assignment]
    os.urandom = bytes


@changes("behaviour", RUNTIME)
def replace_a_kernel(model: Any) -> None:
    import builtins

    import torch

    # Kept, for it takes the kernel back when it goes.
    library = builtins.left = torch.library.Library("aten", "IMPL")  # type: ignore[attr-defined]
    library.impl("native_layer_norm", lambda given, *_: (given * 0, given, given), "CPU")


@changes("behaviour", RUNTIME)
def rewrite_machine_code(model: Any) -> None:
    import ctypes

    libc = ctypes.CDLL(None)
    place = ctypes.cast(libc.abs, ctypes.c_void_p).value or 0
    page = place // 4096 * 4096
    assert libc.mprotect(ctypes.c_void_p(page), 8192, 7) == 0
    ctypes.memmove(place, b"\x31\xc0\xc3", 3)  # return 0, on x86


@changes("behaviour", RUNTIME)
def flush_small_numbers(model: Any) -> None:
    import torch

    torch.set_flush_denormal(True)


@changes("defaults", RUNTIME)
def change_every_default(model: Any) -> None:
    import torch

    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("medium")
    torch.set_printoptions(precision=1)
    torch.set_autocast_enabled("cpu", True)


@changes("defaults", RUNTIME)
def change_the_device(model: Any) -> None:
    import torch

    torch.set_default_device("meta")


@changes("interpreter", RUNTIME)
def change_the_interpreter(model: Any) -> None:
    import decimal
    import gc
    import os
    import sys
    import warnings

    sys.path.insert(0, "/tmp")
    sys.modules["left"] = sys
    sys.meta_path.reverse()
    os.environ["HF_HUB_OFFLINE"] = "0"
    sys.setrecursionlimit(77_777)
    gc.disable()
    warnings.simplefilter("error")
    decimal.getcontext().prec = 3
    sys.stdout = sys.stderr = None


@changes("interpreter", RUNTIME)
def run_at_the_end(model: Any) -> None:
    import atexit
    import os
    import sys

    atexit.register(os._exit, 7)
    sys.excepthook = lambda *_: None


@changes("interpreter", RUNTIME)
def leave_threads_writing(model: Any) -> None:
    import ctypes
    import threading

    weight = model._module.get_input_embeddings().weight

    def write() -> None:
        while True:
            ctypes.memset(weight.data_ptr(), 1, weight.nbytes)

    for _ in range(2):
        threading.Thread(target=write, daemon=True).start()


@changes("process", RUNTIME)
def change_the_process(model: Any) -> None:
    import os
    import resource

    os.umask(0)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


@changes("process", RUNTIME)
def be_deaf_to_signals(model: Any) -> None:
    import signal

    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    signal.setitimer(signal.ITIMER_REAL, 1000)


@changes("descriptors", RUNTIME)
def leave_descriptors_open(model: Any) -> None:
    import os
    import socket

    held = [*os.pipe(), *(one.detach() for one in socket.socketpair())]
    os.set_inheritable(held[0], True)


@changes("descriptors", RUNTIME)
def turn_the_flags_of_open_files(model: Any) -> None:
    """Flags are the open file's, not the descriptor's: whoever else holds it has them turned too."""
    import os
    import stat

    for descriptor in range(1, 256):
        try:
            if descriptor != 2 and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                os.set_blocking(descriptor, not os.get_blocking(descriptor))
        except OSError:
            continue
