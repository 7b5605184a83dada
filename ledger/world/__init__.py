"""Everything we do not control: five ports as Protocols, and the real ones beside them."""
