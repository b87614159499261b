"""The machine around a broker: clock, dice, files, network, processes. A simulation has twins."""
