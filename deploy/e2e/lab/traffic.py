"""Pings that record outages, and throughput by iperf3."""

import json
import re
import signal
import subprocess
import tempfile
from dataclasses import dataclass

from lab.shell import Failed, status

INTERVAL_S = 0.02


@dataclass
class Outage:
    """What a series of pings has seen between its first and last answer."""

    answered: int
    lost: int
    longest_gap_s: float
    errors: dict

    def __str__(self):
        return f"{self.lost} of {self.answered + self.lost} lost, longest gap {self.longest_gap_s:.1f} s"


class Pings:
    """Fifty a second from a pod until `stop`."""

    def __init__(self, pod, address):
        self.output = tempfile.NamedTemporaryFile("r+")
        command = pod.inside("ping", "-n", "-D", "-O", "-i", INTERVAL_S, address)
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.output,
                                        stderr=subprocess.STDOUT, start_new_session=True)

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=10)
        with open(self.output.name, errors="replace") as lines:
            return outage(lines)


def outage(lines):
    """Of the output of `ping -D -O`."""
    answers, errors = [], {}
    for line in lines:
        answer = re.match(r"\[(\d+\.\d+)\] \d+ bytes from .*icmp_seq=(\d+) .*time=", line)
        if answer:
            answers.append((float(answer[1]), int(answer[2])))
        elif re.search(r"unreachable|redirect|exceeded|prohibited|filtered", line, re.IGNORECASE):
            text = re.sub(r"icmp_seq=\d+ ?", "", re.sub(r"^\[.*?\] ", "", line.strip()))
            errors[text] = errors.get(text, 0) + 1
    if not answers:
        raise Failed(f"no ping was answered; {errors}")
    sent = answers[-1][1] - answers[0][1] + 1
    gaps = [after - before for (before, _), (after, _) in zip(answers, answers[1:])]
    received = len({number for _, number in answers})
    return Outage(received, sent - received, max(gaps, default=0.0), errors)


def ping(pod, address, count=1):
    """Whether all of `count` requests are answered."""
    code, _ = status(*pod.inside("ping", "-n", "-c", count, "-i", "0.2", "-W", 2, address))
    return code == 0


def throughput(pod, address, seconds, port=5201, *more):
    """Of one TCP stream, as the receiver counts it, in Mb/s."""
    command = pod.inside("iperf3", "--client", address, "--port", port, "--time", seconds, "--json", *more)
    code, text = status(*command, timeout=seconds + 30)
    if code != 0:
        raise Failed(f"iperf3 to {address}: {json_error(text)}")
    return json.loads(text)["end"]["sum_received"]["bits_per_second"] / 1e6


def json_error(text):
    try:
        return json.loads(text).get("error", text)
    except ValueError:
        return text
