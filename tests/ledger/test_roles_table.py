"""Goal: the table of roles in docs/security.md is that of the code."""

from ledger.core.bookie_roles import Operation, Role, table
from tests.house import ROOT

BEGIN, END = "<!-- roles: begin -->\n", "\n<!-- roles: end -->"


def test_the_documents_have_the_table_of_the_code():
    text = (ROOT / "docs" / "security.md").read_text()
    assert text.partition(BEGIN)[2].partition(END)[0].splitlines() == list(table())


def test_the_table_has_every_operation_and_every_role():
    head, _, *rows = table()
    assert len(rows) == len(Operation)
    assert all(f"| {role} |" in head for role in Role)
