"""Named checks, each with a figure, and the table of a run."""

import datetime
import platform
import time
import traceback

from lab.shell import Failed, run

CHECKS = []


class Check:
    """A function of a `World`, which returns the figure to report and fails by `Failed`."""

    def __init__(self, name, function, is_quick, is_needed):
        self.name = name
        self.function = function
        self.is_quick = is_quick
        # All later checks need it.
        self.is_needed = is_needed


def check(name, is_quick=True, is_needed=False):
    """Adds a function to the suite, in the order of the source."""
    def add(function):
        CHECKS.append(Check(name, function, is_quick, is_needed))
        return function
    return add


class Report:
    """Runs checks; a failed one ends the run only if the later ones need it."""

    def __init__(self):
        self.rows = []

    @property
    def failed(self):
        return [name for name, result, _, _ in self.rows if result == "FAILED"]

    def run(self, checks, world):
        for one in checks:
            print(f"{one.name} …", flush=True)
            start = time.monotonic()
            try:
                result, figure = "ok", one.function(world) or ""
            except Failed as error:
                # What failed first, if the clean-up after it failed too.
                first = error.__context__ if isinstance(error.__context__, Failed) else error
                result, figure = "FAILED", str(first)
            except Exception:
                result, figure = "FAILED", traceback.format_exc()
            seconds = time.monotonic() - start
            self.rows.append((one.name, result, figure, seconds))
            print(f"  {result}, {seconds:.1f} s: {figure}", flush=True)
            if result == "FAILED" and one.is_needed:
                return

    def table(self, title):
        lines = [f"# {title}", "", f"{when_and_where()}.", "", "| check | result | figure | seconds |", "|---|---|---|---|"]
        for name, result, figure, seconds in self.rows:
            first = figure.strip().splitlines()[0] if figure.strip() else ""
            lines.append(f"| {name} | {result} | {first.replace('|', '/')} | {seconds:.1f} |")
        return "\n".join(lines) + "\n"


def when_and_where():
    revision = run("git", "describe", "--always", "--dirty", check=False)
    cores = run("nproc")
    return f"{datetime.date.today()}, {revision}, {cores} cores, Linux {platform.release()}"
