"""The machine around a broker: clock, randomness, files, network, processes."""
