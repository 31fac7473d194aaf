"""A page laid out by headless Chromium: what its figures measure, and what it logged. No driver, only the browser itself."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
)
# The page lies in a frame of the wanted width: the window of a headless Chromium is at least 500 pixels wide.
OUTER = """<!DOCTYPE html><meta charset="utf-8"><body style="margin:0">
<iframe id="page" style="border:0;width:{width}px;height:900px"
srcdoc="{page}"></iframe><pre id="probe"></pre><script>{script}</script></body>"""
SCRIPT = """
window.addEventListener('load', () => {
  const doc = document.getElementById('page').contentDocument, box = e => e.getBoundingClientRect();
  const inside = (a, b) => a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
  const overlap = (a, b) => Math.max(0, Math.min(a.right, b.right) - Math.max(a.left, b.left))
    * Math.max(0, Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top));
  const style = doc.defaultView.getComputedStyle(doc.body);
  const panels = [...doc.querySelectorAll('svg.panel')].map(svg => {
    const frame = box(svg), clash = [];
    const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent.trim(), box(t)]).filter(t => t[0]);
    texts.forEach(([one, a], i) => texts.slice(i + 1).forEach(([other, b]) => {
      if (overlap(a, b) > 0.2 * Math.min(a.width * a.height, b.width * b.height)) clash.push(one + ' / ' + other);
    }));
    const marks = [...svg.querySelectorAll('.mark')].map(box);
    return {
      name: svg.querySelector('title').id, figure: svg.closest('section').id, width: frame.width, height: frame.height,
      words: svg.querySelector('desc').textContent.length,
      marks: marks.filter(m => m.width + m.height > 1 && inside(m, frame)).length,
      cut: texts.filter(t => !inside(t[1], frame)).map(t => t[0]), clash,
      small: Math.min(...texts.map(t => t[1].height)),
    };
  });
  const figures = [...doc.querySelectorAll('section:has(> figure)')].map(section => ({
    figure: section.id, height: box(section.querySelector('figure')).bottom - box(section.querySelector('h2')).top,
  }));
  const found = {panels, figures, overflow: doc.documentElement.scrollWidth - doc.documentElement.clientWidth,
    ink: style.color, paper: style.backgroundColor};
  document.getElementById('probe').textContent = JSON.stringify(found);
});
"""


def find() -> str | None:
    """A Chromium or Chrome of this machine."""
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


def as_printed(page: str) -> str:
    """The page with its rules for print in force on a screen, where they can be measured."""
    assert page.count("@media print {") == 1
    return page.replace("@media print {", "@media all {")


def lay_out(page: str, width: int, dark: bool, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """What the page measures at this width, and every line that it logged."""
    outer = folder / f"outer-{width}.html"
    outer.write_text(OUTER.format(width=width, page=html.escape(page), script=SCRIPT), "utf-8")
    flags = [*FLAGS, f"--user-data-dir={folder / 'profile'}", f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    command = [str(find()), *flags, f"--window-size={max(width, 500)},1000", "--dump-dom", outer.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    probe = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert probe, f"the page did not load: {done.stderr[-2000:]}"
    logged = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    found: dict[str, Any] = json.loads(html.unescape(probe[1]))
    return found, logged
