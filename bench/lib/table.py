"""The table that people read."""

import dataclasses


@dataclasses.dataclass
class Row:
    """One number. `goal` is a share of `limit` to reach, or, without a limit, the most that `product` may be."""

    name: str
    unit: str
    product: float
    limit: float | None = None
    goal: float | None = None

    def met(self):
        if self.goal is None:
            return None
        return self.product / self.limit >= self.goal if self.limit else self.product <= self.goal


def number(value):
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def table(rows, judged):
    lines = ["| measured | limit | SluiceFS | of the limit | goal | |", "|---|--:|--:|--:|--:|---|"]
    for row in rows:
        share = f"{row.product / row.limit:.2f}" if row.limit else ""
        goal = "" if row.goal is None else (f">= {row.goal}" if row.limit else f"< {number(row.goal)}")
        verdict = "" if row.met() is None else ("met" if row.met() else "**missed**")
        verdict = verdict if judged else "not judged"
        lines.append(f"| {row.name}, {row.unit} | {number(row.limit)} | {number(row.product)} | {share} | {goal} | {verdict} |")
    return "\n".join(lines)
