"""Programs that Headrace starts on this machine."""
