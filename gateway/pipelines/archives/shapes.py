"""The shapes of what `gateway job archive` prints."""

from __future__ import annotations

from typing import Final

from ledger.command_line.shape import Shape, one, rows, text, whole

_TOPIC: Final = text("topic", "Name of the topic.")
_PARTITION: Final = whole("partition", "Number of the partition.")

ARCHIVED: Final = Shape(
    fields=(
        text("archive", "The archive, as --to names it."),
        text("format", "parquet or iceberg."),
        whole("commits", "Number of commits."),
        whole("offsets", "Number of archived offsets."),
        whole("lost", "Number of offsets that the archive goes without, without `skipped`."),
        whole("skipped", "Number of offsets before the start of topics that appeared later."),
        rows(
            "losses",
            "The offsets that are lost or skipped.",
            _TOPIC,
            _PARTITION,
            whole("start", "First offset."),
            whole("end", "Offset after the last one."),
            text("reason", "Why they are not archived."),
        ),
        rows(
            "set_aside",
            "The topics that cannot be archived now; the exit code is 1, or 77 if all are refused.",
            _TOPIC,
            text("code", "Code of the error."),
            text("reason", "The error."),
        ),
        one(
            "compacted",
            "The result of --compact; null without it.",
            whole("files_before", "Number of files before."),
            whole("files_after", "Number of files after."),
            nullable=True,
        ),
    ),
    rows="places",
    columns=(
        _TOPIC,
        _PARTITION,
        whole("start", "First offset that this job archived."),
        whole("end", "Offset after the last one."),
        whole("offsets", "Number of archived offsets."),
        whole("lost", "Number of offsets that the archive goes without."),
    ),
)
