"""The replicas that this broker hosts, as leader or follower."""
