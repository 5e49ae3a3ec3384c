"""The fleet core: one pure function from a state and an event to a state and commands.

``step(state, event)`` decides everything the operator does to a fleet. It reads no clock, draws no
chance and performs no I/O: time comes in events, what is to be done goes out as commands. So a run
can be recorded and replayed bit for bit, and a search can drive it through every interleaving.
"""
