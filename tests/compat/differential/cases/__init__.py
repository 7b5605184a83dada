"""The cases, one file for each API, as `gateway/handlers`."""
