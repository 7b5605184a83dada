"""Find under-replicated ledgers and restore their copies."""
