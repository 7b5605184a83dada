"""The web page and its JSON API: a client of the cluster that runs inside a gateway."""
