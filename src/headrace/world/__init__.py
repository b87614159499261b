"""The machine around a broker: wall clock and dice, each with a twin that a simulation controls."""
