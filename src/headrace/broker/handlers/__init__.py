"""One function per API: a request in, a response out."""
