"""The test kit: a broker inside your test."""
