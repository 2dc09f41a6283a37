"""The table that people read."""

import dataclasses


@dataclasses.dataclass
class Row:
    """One number. `goal` is a share of `limit` to reach (`at_most`: not to pass), or, without a limit, the most that `product` may be.
    Where there is no `product` but a goal, `why` says why it was not measured; else what a reader should know of it."""

    name: str
    unit: str
    product: float | None
    limit: float | None = None
    goal: float | None = None
    at_most: bool = False
    why: str = ""
    # What fsync promises in what was measured, and the most bytes that were acked and not stored when one of its mounts was ended. Without a
    # mount there is neither.
    tier: str | None = None
    unstored_bytes: int | None = None

    def met(self):
        """None when there is nothing to judge."""
        if self.goal is None or self.product is None or self.limit == 0:
            return None
        if self.limit is None:
            return self.product <= self.goal
        share = self.product / self.limit
        return share <= self.goal if self.at_most else share >= self.goal


def unmeasured(name, unit, goal, why, at_most=False):
    """A row for what could not be measured here: nothing is left out in silence."""
    return Row(name, unit, None, None, goal, at_most, why)


def number(value):
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def size(value):
    return "" if value is None else f"{value / 2**20:,.1f} MiB"


def goal(row):
    if row.goal is None:
        return ""
    if row.limit is None and row.product is not None:
        return f"<= {number(row.goal)}"
    return f"{'<=' if row.at_most else '>='} {row.goal}"


def verdict(row, judged):
    if row.product is None:
        return f"not measured: {row.why}" if row.why else ""
    met = row.met()
    words = "" if met is None else "not judged" if not judged else "met" if met else "**missed**"
    return "; ".join(part for part in (words, row.why) if part)


def table(rows, judged):
    lines = ["| measured | tier | not stored | limit | SluiceFS | of the limit | goal | |", "|---|---|--:|--:|--:|--:|--:|---|"]
    for row in rows:
        share = f"{row.product / row.limit:.2f}" if row.limit and row.product is not None else ""
        cells = [", ".join(part for part in (row.name, row.unit) if part), row.tier or "", size(row.unstored_bytes), number(row.limit), number(row.product), share, goal(row), verdict(row, judged)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
