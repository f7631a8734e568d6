"""How fast the farm is, in one run on one machine: ``python -m tests.bench [MEASURE...]``, or ``make bench``.

One file per measure. Each starts what it needs itself. What is compared was timed in the same minutes: the same client
against a farm that does nothing, the same trace here, the same steps by hand.
"""
