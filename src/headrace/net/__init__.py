"""The door to sockets. Above this package nobody sees one."""
