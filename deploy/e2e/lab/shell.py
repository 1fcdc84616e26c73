"""Commands, waiting, and what went wrong."""

import subprocess
import time


class Failed(Exception):
    """A command or a check failed; the text says which and why."""


def run(*command, check=True, stdin=None, env=None, cwd=None, timeout=300):
    """Runs a command and returns what it printed to standard output, without the last newline."""
    command = [str(word) for word in command]
    try:
        done = subprocess.run(command, input=stdin, env=env, cwd=cwd, timeout=timeout, capture_output=True, text=True)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{' '.join(command)}: no end within {timeout} s") from error
    if check and done.returncode != 0:
        raise Failed(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout.rstrip("\n")


def status(*command, stdin=None, timeout=300):
    """Runs a command; its exit status, and both outputs in one text."""
    command = [str(word) for word in command]
    done = subprocess.run(command, input=stdin, timeout=timeout, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def wait_until(what, condition, timeout=60, pause=0.2):
    """Waits until `condition()` is true, and returns its value. A failed command counts as false."""
    deadline = time.monotonic() + timeout
    while True:
        cause = ""
        try:
            if value := condition():
                return value
        except Failed as error:
            cause = f": {error}"
        if time.monotonic() > deadline:
            raise Failed(f"not within {timeout} s: {what}{cause}")
        time.sleep(pause)


def require(condition, text):
    """Fails with `text` unless `condition` is true."""
    if not condition:
        raise Failed(text)
