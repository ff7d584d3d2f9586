"""Format an estimate as text."""

from __future__ import annotations

from typing import Any

PHASE_COLUMNS = ("", "GFLOP", "MB moved", "FLOP/byte", "floor, ms", "bound by")
RELATIONS = {  # relations shown: label, scale and name of the unit
    "P": ("P: weights of a token's layers", 1e6, "M"),
    "flops_per_token": ("2 P: operations per token", 1e9, "GFLOP"),
    "cache_bytes_per_token": ("cache per token", 1e3, "kB"),
    "cache_flops_per_token": ("operations that the cache saves per token", 1e9, "GFLOP"),
    "tokens_at_balance": ("A_f / A_bm: tokens where arithmetic and memory take as long", 1, ""),
    "tokens_in_memory": ("tokens of cache that fit beside the weights", 1, ""),
    "flops_per_byte_sent": ("A_f / A_c: operations per byte sent", 1, ""),
    "memory_seconds": ("step, small batch: reading the weights", 1e-3, "ms"),
    "arithmetic_seconds": ("step, this batch: arithmetic", 1e-3, "ms"),
    "message_seconds": ("step, small batch: messages", 1e-3, "ms"),
    "transfer_seconds": ("step, this batch: bytes sent", 1e-3, "ms"),
}


def table(found: dict[str, Any]) -> str:
    """Return the result of `estimate` as a table for display."""
    work, device = found["work"], found["device"]
    parts = found["parameters"]
    written = f", target {work['target']:,}, beams {work['beams']}" if work["target"] else ""
    several = f"{device['devices']} × " if device["devices"] > 1 else ""
    lines = [
        f"{found['model']}: {parts['all']:,} parameters",
        *_rows(
            (part, f"{count:,}", _percent(count, parts["all"]))
            for part, count in parts.items()
            if part != "all"
        ),
        "",
        f"batch {work['batch']:,}, source {work['source']:,}{written}, {work['dtype']}",
        f"on {several}{device['name']}: "
        f"{device['flops'] / 1e12:,.3g} TFLOP/s, {device['bandwidth'] / 1e9:,.4g} GB/s, "
        f"{device['memory'] / 1e9:,.3g} GB",
        "",
        *_phases(found["phases"]),
        "",
        *_memory(found["memory"], device["memory"], several),
        "",
        "relations (kipply, 2022)",
        *_rows(
            (label, _number(found["relations"][name], scale), unit)
            for name, (label, scale, unit) in RELATIONS.items()
            if name in found["relations"]  # an encoder has none of a cache
        ),
    ]
    return "\n".join(line.rstrip() for line in lines)


def _phases(phases: dict[str, dict[str, Any]]) -> list[str]:
    """Return a row for each phase; columns without information are left out."""
    sends = any(phase["sent"] for phase in phases.values())
    measured = any("measured_seconds" in phase for phase in phases.values())
    header = [
        *PHASE_COLUMNS,
        *(["sent, MB"] if sends else []),
        *(["measured, ms", "floor reached"] if measured else []),
    ]
    rows = [header]
    for name, phase in phases.items():
        row = [
            _words(name),
            _number(phase["flops"], 1e9),
            _number(phase["bytes"], 1e6),
            _number(phase["intensity"], 1),
        ]
        row += [_number(phase["floor_seconds"], 1e-3), phase["bound_by"]]
        if sends:
            row.append(_number(phase["sent"], 1e6))
        if measured:
            row += [_number(phase["measured_seconds"], 1e-3), f"{100 * phase['reached']:.0f} %"]
        rows.append(row)
    return _rows(rows)


def _memory(memory: dict[str, dict[str, float]], available: float, several: str) -> list[str]:
    lines = []
    for name, parts in memory.items():
        where = "of each device" if several else "of the device"
        fits = "fits into" if parts["all"] <= available else "does not fit into"
        lines.append(
            f"memory of {name}: {_number(parts['all'], 1e6)} MB, {fits} the {available / 1e9:,.3g} GB {where}"
        )
        lines += _rows(
            (_words(part), _number(size, 1e6), "MB") for part, size in parts.items() if part != "all" and size
        )
    return lines


def _rows(rows: Any) -> list[str]:
    """Align rows of texts in columns: the first column to the left, the others to the right."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  "
        + "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in cells
    ]


def _number(value: float | None, scale: float) -> str:
    """Format a number in a unit, with four significant digits or all digits before the point."""
    if value is None:
        return "–"
    number = value / scale
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %"


def _words(name: str) -> str:
    return name.replace("_", " ")
