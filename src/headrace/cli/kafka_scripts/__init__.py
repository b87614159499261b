"""Kafka script compatibility: command lines of Kafka's scripts, translated into Headrace's."""
