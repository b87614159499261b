"""The words of the domain: names for numbers, errors, settings, the cluster metadata."""
