"""What a report prints, and one number of its summary."""

import io

from rich.console import Console

from harness.report import print_report


def printed(folder, width=120, allow_confounded=False):
    out = io.StringIO()
    print_report(folder, Console(file=out, width=width, force_terminal=False), allow_confounded)
    return out.getvalue()


def pick(numbers, metric, arm="ngram", content="code", concurrency=1):
    chosen = numbers[
        (numbers.metric == metric)
        & (numbers.arm == arm)
        & (numbers.content_class == content)
        & (numbers.concurrency == concurrency)
    ]
    assert len(chosen) == 1
    return chosen.iloc[0]
