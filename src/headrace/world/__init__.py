"""The machine around a broker: clock, dice, files, network. A simulation replaces all of it."""
