"""The machine around a broker: clock, dice, files, processes; a simulation controls twins."""
