"""The gate: what the tests of ``make test`` stand on. No process, thread, signal, port or sleep, and no clock but its own.

* Time is a number that moves to the next timer when nothing is left to do (:mod:`tests.gate.time`).
* Every event loop that is made here runs on that time, in one thread, in one order (:mod:`tests.gate.loop`).
* Sockets lie in memory (:mod:`tests.gate.sockets`). Who waits for one, or for an event, has the loops go on meanwhile.
* Whatever reaches for the real world all the same raises :class:`~tests.gate.guard.Real`, and fails the test. One that is about
  reality is marked ``real``, and runs by ``make test-all``.
"""
