"""The curve of a training: rows in CSV files as it goes, and a picture of them."""

from __future__ import annotations

import csv
from pathlib import Path


class Curve:
    """`curve.csv` has the means since the row before, `held_out.csv` the acceptance in the real engine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, step: int, seconds: float, means: dict[str, float]) -> None:
        self._append("curve.csv", {"step": step, "seconds": round(seconds, 1), **{k: round(v, 4) for k, v in means.items()}})

    def add_held_out(self, step: int, seconds: float, interval: dict[str, float]) -> None:
        self._append("held_out.csv", {"step": step, "seconds": round(seconds, 1), **interval})

    def _append(self, name: str, row: dict[str, float]) -> None:
        """Columns may come later than the first row (a further pass has its own accuracy), so the file is written anew."""
        rows = [*self.read(name), {key: str(value) for key, value in row.items()}]
        rows = [r for r in rows[:-1] if float(r["step"]) < row["step"]] + rows[-1:]  # what a resumed training does again
        fields = list(dict.fromkeys(key for r in rows for key in r))
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{name}.tmp").open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, fields)
            writer.writeheader()
            writer.writerows(rows)
        (self.folder / f"{name}.tmp").replace(self.folder / name)

    def read(self, name: str) -> list[dict[str, str]]:
        path = self.folder / name
        if not path.exists():
            return []
        with path.open(newline="", encoding="utf-8") as stream:
            return [{k: v for k, v in row.items() if v != ""} for row in csv.DictReader(stream)]

    def draw(self, title: str, path: Path) -> None:
        """Loss and accuracy by update above, held-out acceptance length with its interval below."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt

        rows, held_out = self.read("curve.csv"), self.read("held_out.csv")
        figure, (above, below) = plt.subplots(2, 1, figsize=(7, 6), sharex=True, layout="constrained")
        above.plot([int(r["step"]) for r in rows], [float(r["loss"]) for r in rows], color="black", label="loss (nat)")
        for name in sorted({key for r in rows for key in r if key.startswith("accuracy")}):
            found = [(int(r["step"]), float(r[name])) for r in rows if name in r]
            above.plot(*zip(*found, strict=True), label=name.replace("_", " ") + " (share)")
        above.set(title=title, ylim=(0, None))
        above.legend(fontsize="small", ncols=2)
        steps, values = [int(r["step"]) for r in held_out], [float(r["value"]) for r in held_out]
        spans = [
            [v - float(r["low"]) for v, r in zip(values, held_out, strict=True)],
            [float(r["high"]) - v for v, r in zip(values, held_out, strict=True)],
        ]
        below.errorbar(steps, values, yerr=spans, marker="o", capsize=3, color="tab:blue")
        below.set(xlabel="update", ylabel="held-out acceptance length\n(tokens per verification, 95 % interval)")
        figure.savefig(path, dpi=110)
        plt.close(figure)
