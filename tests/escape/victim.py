"""A process for attacks to aim at: ``python -I -S victim.py FILE SIGNALLED``, with a word in its environment.

It prints where that word lies in its memory and under which number it holds FILE, makes SIGNALLED when it gets a
signal, and ends with its input.
"""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

word = ctypes.create_string_buffer(os.environ["WORD"].encode())
held = os.open(sys.argv[1], os.O_RDONLY)
for number in (signal.SIGCONT, signal.SIGIO):
    signal.signal(number, lambda *_: Path(sys.argv[2]).touch())
# Where only a parent may look into a process, this one lets everybody of its user: the jail is under test, not Yama.
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_long(-1), 0, 0, 0)
print(json.dumps({"address": ctypes.addressof(word), "descriptor": held}), flush=True)
sys.stdin.read()
