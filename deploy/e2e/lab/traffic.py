"""Pings and a TCP stream that record outages, and throughput by iperf3."""

import json
import re
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lab.shell import Failed, status

INTERVAL_S = 0.02

# A program, and the port at which it listens.
STREAM_END, STREAM_PORT = Path(__file__).with_name("stream_end"), 5300


@dataclass
class Outage:
    """What a series of pings has seen between its first and last answer, and a TCP stream meanwhile."""

    answered: int
    lost: int
    longest_gap_s: float
    errors: dict
    stream_gap_s: float | None = None

    def __str__(self):
        stream = "" if self.stream_gap_s is None else f", of a TCP stream {self.stream_gap_s:.1f} s"
        return f"{self.lost} of {self.answered + self.lost} lost, longest gap {self.longest_gap_s:.1f} s{stream}"


class Traffic:
    """Ends its processes with the `with` block, also if that fails."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()


class Pings(Traffic):
    """Fifty a second from a pod until `stop`."""

    def __init__(self, pod, address):
        self.output = tempfile.NamedTemporaryFile("r+")
        command = pod.inside("ping", "-n", "-D", "-O", "-i", INTERVAL_S, address)
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.output,
                                        stderr=subprocess.STDOUT, start_new_session=True)
        self.processes = [self.process]

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=10)
        with open(self.output.name, errors="replace") as lines:
            return outage(lines)


class Stream(Traffic):
    """TCP from a pod to `address` of the pod `remote`, with fifty writes a second, until `stop`."""

    def __init__(self, pod, remote, address):
        self.receiver = stream_end(remote, "receive", STREAM_PORT)
        if self.receiver.stdout.readline() != "listening\n":
            raise Failed(f"no TCP stream can be received: {self.receiver.stderr.read()}")
        self.sender = stream_end(pod, "send", address, STREAM_PORT)
        self.processes = [self.sender, self.receiver]

    def stop(self):
        """The longest gap in seconds."""
        self.sender.terminate()
        _, sender_error = self.sender.communicate(timeout=10)
        gap, receiver_error = self.receiver.communicate(timeout=30)
        if sender_error or receiver_error:
            raise Failed(f"the TCP stream ended: {sender_error}{receiver_error}")
        return float(gap)


def stream_end(pod, *arguments):
    return subprocess.Popen(pod.inside(STREAM_END, *arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, start_new_session=True, text=True)


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
