"""Rows of all parts as one Markdown page."""

from _gpu.cases import GPUS


def markdown(rows, about):
    """The page: what was measured on what, then a section for each part that has rows."""
    parts = ["# Backend cuda on a GPU", f"{about['date']}, device {about['device']}. {_facts(_of(rows, 'facts'))}"]
    if about["shrink"] != 1:
        parts.append(f"**Everything was made smaller by {about['shrink']}: these figures mean nothing.**")
    steps = [row for row in rows if row["kind"] == "step"]
    parts.append(
        _table(["part", "seconds", "came of it"], [[s["name"], f"{s['seconds']:.0f}", s["outcome"]] for s in steps])
    )
    copy = next((row["gbps"] for row in _of(rows, "copy")), None)
    products = {row["dtype"]: row.get("tflops") for row in _of(rows, "product")}
    parts += ["## Ceilings", _ceilings(copy, _of(rows, "product")), "## Correctness", _correctness(rows)]
    peers = {}
    for row in _of(rows, "peer"):
        if "us" in row:
            peers.setdefault(row["case"], {})[row["library"]] = row["us"]
    for part, title in (("decode", "Decode"), ("prefill", "Prefill")):
        some = [row for row in rows if row.get("part") == part and "case" in row]
        if some:
            parts += [f"## {title}", _attention(some, copy, products, peers)]
    parts += _overhead(rows)
    refused = sorted({f"{row['library']}: {row['failed']}" for row in _of(rows, "peer") if "failed" in row})
    if refused:
        parts.append("Not measured beside ours:\n\n" + "\n".join(f"- {line}" for line in refused))
    parts += _capacity(_of(rows, "capacity"))
    return "\n\n".join(parts) + "\n"


def _of(rows, kind):
    return [row for row in rows if row["kind"] == kind]


def _facts(rows):
    return ", ".join(
        f"{name} {value}" for name, value in (rows[0] if rows else {}).items() if name not in ("kind", "part")
    )


def _ceilings(copy, products):
    lines = [f"- copy on the device: {f'{copy:.0f} GB/s, read and written' if copy else 'not measured'}"]
    for row in products:
        rate = f"{row['tflops']:.0f} TFLOP/s by {row['by']}" if "tflops" in row else row["failed"]
        lines.append(f"- dense product, {row['dtype']}: {rate}")
    return "\n".join(lines)


def _correctness(rows):
    compared = _of(rows, "compared")
    wrong = [row for row in compared if not (row["ok"] and row["stored"])]
    lines = [f"- {len(compared)} cases against backend cpu, {len(wrong)} wrong"]
    for row in wrong:
        errors = " ".join(f"{error:.1e}" for error in row["errors"])
        stored = "" if row["stored"] else ", stored bytes differ"
        name = f"{row['dtype']} {row['sizes']} {row['layout']} page {row['block_size']}{' full' * row['full']}"
        lines.append(f"  - {name}: errors {errors}, {row['tolerance']:.0e} allowed{stored}")
    for row in _of(rows, "compiled"):
        lines.append(f"- {row['kernels']} kernels compiled in {row['seconds']:.0f} s, {len(row['problems'])} refused")
        lines += [f"  - {problem}" for problem in row["problems"]]
    for row in _of(rows, "kernels"):
        lines.append(
            f"- {row['launched']} kernels were launched; not: {', '.join(row['missing']) or 'none is missing'}"
        )
    for row in _of(rows, "conformance"):
        if "failed" in row:
            lines.append(f"- {row['failed']}")
            continue
        counts = f"{row['passed']} passed, {row['skipped']} skipped, {len(row['failures'])} failed"
        lines += [f"- conformance suite: {counts}", *(f"  - {line}" for line in row["failures"][:30])]
    for row in _of(rows, "sanitizer"):
        if "failed" in row:
            lines.append(f"- compute-sanitizer {row.get('tool', '')}: {row['failed']}")
        else:
            lines.append(f"- compute-sanitizer {row['tool']}: status {row['status']}, {row['lines'][-1:]}")
    return "\n".join(lines)


def _attention(rows, copy, products, peers):
    libraries = sorted({name for row in rows for name in peers.get(row["case"], {})})
    head = ["heads", "type", "batch", "page", "us", "GB/s", "TFLOP/s", "of ceiling", *(f"target {gpu}" for gpu in GPUS)]
    table = []
    for row in rows:
        line = [row["heads"], row["dtype"], row["name"], str(row["block_size"])]
        if "us" not in row:
            table.append([*line, row["failed"]] + [""] * (len(head) - 5 + len(libraries)))
            continue
        gbps, tflops = row["nbytes"] / row["us"] / 1e3, row["flops"] / row["us"] / 1e6
        ceiling = copy if row["part"] == "decode" else products.get(row["dtype"])
        reached = gbps if row["part"] == "decode" else tflops
        line += [f"{row['us']:.1f}", f"{gbps:.0f}", f"{tflops:.1f}", f"{reached / ceiling:.2f}" if ceiling else ""]
        line += [f"{target:.2f}" for target in row["targets"]] if row["targets"] else ["", ""]
        found = peers.get(row["case"], {})
        table.append(line + [_beside(row["us"], found.get(name)) for name in libraries])
    return _table([*head, *libraries], table)


def _beside(us, other):
    return f"{other:.1f} us, {other / us:.2f}x" if other else ""


def _overhead(rows):
    calls = [[r["name"], *(f"{r[f'{x}_us']:.1f}" for x in ("host", "whole", "gpu"))] for r in _of(rows, "call")]
    graphs = [
        [r["case"], *(f"{r[f'{x}_us']:.1f}" for x in ("direct", "workspace", "replay")), "yes" if r["equal"] else "NO",
         str(r["workspace_bytes"])] for r in _of(rows, "graph")
    ]  # fmt: skip
    plans = [[str(r["sequences"]), f"{r['schedule_us']:.0f}", f"{r['plan_us']:.0f}"] for r in _of(rows, "plan")]
    tables = (
        (["call on 1 sequence of 16 tokens", "host us", "until done us", "GPU us"], calls),
        (["layers of a step", "direct us", "by workspace us", "graph us", "equal", "workspace bytes"], graphs),
        (["sequences of 1024 tokens", "schedule of a step us", "plan of a workspace us"], plans),
    )
    found = [_table(head, lines) for head, lines in tables if lines]
    return ["## Overhead", *found] if found else []


def _capacity(rows):
    if not rows:
        return []
    head = ["K and V", "sequences", "tokens held", "attend ms", "host ms", "weights ms", "tokens/s"]
    table = [
        [r["name"], str(r["sequences"]), str(r["tokens"]),
         *(f"{r[x]:.2f}" for x in ("attend_ms", "host_ms", "weights_ms")), f"{r['tokens_per_s']:.0f}"] for r in rows
    ]  # fmt: skip
    parts = ["## The same memory, paged and contiguous", _table(head, table)]
    named = {row["name"]: row for row in rows}
    if {"paged", "contiguous"} <= set(named):
        more, faster = (named["paged"][x] / named["contiguous"][x] for x in ("sequences", "tokens_per_s"))
        parts.append(
            f"Paged holds {more:.1f} times as many sequences, and makes {faster:.1f} times as many tokens a second."
        )
    return parts


def _table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
