"""The vocabulary of the domain: ids, errors, settings, cluster metadata."""
