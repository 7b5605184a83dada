"""An authorizer whose decisions are a function, for tests of what asks it."""


class Deciding:
    """Decides by `decide(principal, operation, resource)`."""

    def __init__(self, decide):
        self.decide = decide

    def allows(self, principal, host, operation, resource):
        return self.decide(principal, operation, resource)

    def allows_any(self, principal, host, operation, kind):
        return self.decide(principal, operation, kind)
