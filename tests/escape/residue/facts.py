"""What a job sees of its model, its interpreter and its process: whatever an earlier job may have left behind.

Every answer is the same in each untouched runner of one zygote. Sent with a block, by value, so imports are inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

Fact = Callable[[Any], object]


def digest(seen: Iterable[object]) -> str:
    import hashlib

    text = hashlib.sha256()
    for one in seen:
        text.update(one if isinstance(one, bytes) else repr(one).encode())
    return text.hexdigest()[:16]


def weights(model: Any) -> object:
    import torch

    def look(tensor: Any) -> list[object]:
        data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        kind = type(tensor), tensor.dtype, tensor.shape, tensor.stride(), tensor.untyped_storage().nbytes()
        return [data, *kind, tensor.requires_grad, tensor.grad is None]

    named = [*model._module.named_parameters(remove_duplicate=False), *model._module.named_buffers()]
    return {name: digest(look(tensor)) for name, tensor in named}


def modules(model: Any) -> object:
    def own(module: Any) -> list[object]:
        return [(name, callable(value) and id(value)) for name, value in sorted(vars(module).items())]

    return {name: (str(type(one)), one.training, own(one)) for name, one in model._module.named_modules()}


def hooks(model: Any) -> object:
    import torch

    spaces = [torch.nn.modules.module, *model._module.modules()]
    return [len(held) for one in spaces for name, held in sorted(vars(one).items()) if name.endswith("_hooks")]


def settings(model: Any) -> object:
    module, tokenizer = model._module, model.tokenizer
    return str(module.config), str(module.generation_config), str(tokenizer), len(tokenizer), tokenizer.encode("a b")


def functions(model: Any) -> object:
    """Where each function lies, and its code: forks of one process agree, until one is replaced."""
    import sys
    from types import BuiltinFunctionType, FunctionType

    kinds = (FunctionType, BuiltinFunctionType, type, staticmethod, classmethod, property)
    roots = ("nnsight.", "torch.nn.modules.", "torch.autograd", "transformers.generation.utils", "socket", "random")
    names = {"torch", "torch.nn.functional", "torch.serialization", "numpy", "builtins", "os", "io", "pickle", "json"}
    names |= {"cloudpickle.cloudpickle", type(model._module).__module__}
    loaded = {name for name in sys.modules if name in names or name.startswith(roots)}
    known = set()

    def places(space: Any) -> Iterator[object]:
        for name, value in list(vars(space).items()):
            if isinstance(value, kinds):
                yield name, id(value), id(getattr(value, "__code__", None))
            if isinstance(value, type) and value not in known and value.__module__ in loaded:
                known.add(value)
                yield from places(value)

    return {name: digest(places(sys.modules[name])) for name in sorted(loaded)}


def behaviour(model: Any) -> object:
    """What functions do that no dictionary shows: kernels chosen by a dispatcher, and the machine's own code."""
    import ctypes

    import torch

    table = torch.arange(6.0).reshape(2, 3)
    made = table @ table.T, table.softmax(-1), torch.nn.functional.layer_norm(table, (3,))
    return [one.tolist() for one in made], ctypes.CDLL(None).abs(-5), (torch.tensor(1e-40) * 1).item()


def defaults(model: Any) -> object:
    import torch

    return {
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.get_default_device()),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "attention": (torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()),
        "printing": repr(torch._tensor_str.PRINT_OPTS),
    }


def interpreter(model: Any) -> object:
    import atexit
    import builtins
    import decimal
    import gc
    import locale
    import os
    import sys
    import threading
    import warnings

    return {
        "path": (sys.path, [str(type(one)) for one in sys.meta_path], len(sys.path_hooks)),
        "modules": sorted(sys.modules),
        "builtins": sorted(vars(builtins)),
        "environment": dict(os.environ),
        "ends": (atexit._ncallbacks(), sys.excepthook.__module__, threading.excepthook.__module__),
        "collector": (gc.isenabled(), gc.get_threshold(), len(gc.callbacks)),
        "limits": (sys.getrecursionlimit(), sys.getswitchinterval(), decimal.getcontext().prec),
        "warnings": str(warnings.filters),
        "locale": locale.setlocale(locale.LC_ALL),
        "streams": (str(type(sys.stdin)), str(type(sys.stdout)), str(type(sys.stderr))),
        "tracing": (sys.gettrace() is None, sys.getprofile() is None),
        "threads": [one.name for one in threading.enumerate()],
    }


def process(model: Any) -> object:
    import os
    import resource
    import signal

    told = ("Umask", "SigBlk", "SigIgn", "SigCgt", "Cap", "NoNewPrivs", "Seccomp:", "Uid", "Gid", "Groups")
    with open("/proc/self/status") as file:
        status = [line for line in file if line.startswith(told)]
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_AS"]
    return {
        "status": status,
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in limits},
        "handlers": {one.name: str(signal.getsignal(one)) for one in signal.Signals},
        "alarm": signal.getitimer(signal.ITIMER_REAL),
        "folder": os.getcwd(),
        "priority": (os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(0))),
    }


def descriptors(model: Any) -> object:
    import os

    def kinds() -> Iterator[tuple[int, str, int]]:
        for descriptor in range(256):
            try:
                kind = os.readlink(f"/proc/self/fd/{descriptor}").partition("[")[0]
                yield descriptor, kind, os.get_blocking(descriptor)
            except OSError:
                continue

    return list(kinds())


def files(model: Any) -> object:
    import os

    def look(folder: str) -> object:
        # A folder in a scratch of its own is made anew for each runner.
        try:
            found = [(one, one.stat()) for one in os.scandir(folder)]
            return {one.name: (told.st_size, one.is_file() and told.st_mtime_ns) for one, told in found}
        except OSError as error:
            return type(error).__name__

    with open("/proc/self/maps") as file:
        held = {line.split(maxsplit=5)[5].strip().partition("/blobs/")[0] for line in file if "/blobs/" in line}
    folders = [f"{place}/{part}" for place in sorted(held) for part in ("", "blobs", "refs", "snapshots")]
    return {folder: look(folder) for folder in (*folders, "/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", os.getcwd())}


FACTS: dict[str, Fact] = {
    fact.__name__: fact
    for fact in (
        *(weights, modules, hooks, settings, functions, behaviour, defaults, interpreter, process, descriptors, files),
    )
}


def look(model: Any) -> dict[str, object]:
    """Every fact."""
    return {name: fact(model) for name, fact in FACTS.items()}
