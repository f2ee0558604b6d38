#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""top.py FIBERCTL TARGET... - fiberctl top in pseudo-terminals

TARGET... is a command that prints its pid and goes on until its input ends. One line
for each case: "ok NAME" or "not ok NAME: why".

Between this program and top stands a shell's part: a process that leads the session
and gives top the terminal as its foreground group, as only then can it be stopped.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

LIMIT = 60              # seconds for anything to come
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"


def lead(argv, events):
    """Of the session: run argv in front; say when it stops and how it ends."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execv(argv[0], argv)
    os.write(events, b"pid %d\n" % pid)
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED | os.WCONTINUED)
        if os.WIFSTOPPED(status):
            os.write(events, b"stopped\n")
        elif os.WIFEXITED(status):
            os.write(events, b"exit %d\n" % os.WEXITSTATUS(status))
            break
        elif os.WIFSIGNALED(status):
            os.write(events, b"signal %d\n" % os.WTERMSIG(status))
            break
    try:
        os.read(0, 1)   # the terminal stays until it is looked at
    except OSError:
        pass


class Top:
    def __init__(self, *words, rows=24, columns=100):
        self.out, self.events, self.seen = b"", b"", 0
        back, front = os.pipe()
        self.leader, self.fd = pty.fork()
        if self.leader == 0:
            # Nothing of ours: a target lives as long as its input is open.
            os.dup2(front, 3)
            os.closerange(4, 256)
            os.environ["TERM"] = "xterm"
            fcntl.ioctl(0, termios.TIOCSWINSZ,
                        struct.pack("4H", rows, columns, 0, 0))
            lead([FIBERCTL, "top"] + list(words), 3)
            os._exit(0)
        os.close(front)
        self.back = back
        self.pid = int(self.event(rb"pid (\d+)\n").group(1))

    def pump(self, seconds=0.1):
        for fd in select.select([self.fd, self.back], [], [], seconds)[0]:
            try:
                data = os.read(fd, 65536)
            except OSError:
                data = b""
            if fd == self.fd:
                self.out += data
            else:
                self.events += data

    def until(self, what, found):
        end = time.monotonic() + LIMIT
        while True:
            value = found()
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError("no %s; events %r, screen ends %r" % (
                    what, self.events, self.out[-2000:]))
            self.pump()

    def event(self, pattern):
        return self.until(pattern, lambda: re.search(pattern, self.events))

    def picture(self):
        """Lines of the newest whole picture after what was seen before."""
        def newest():
            parts = self.out[self.seen:].split(b"\x1b[H")
            whole = [p for p in parts[1:] if b"\x1b[J" in p]
            return whole[-1] if whole else None
        part = self.until("picture", newest).split(b"\x1b[J")[0]
        text = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", part)
        return text.decode().split("\r\n")

    def forget(self):
        self.pump(0)
        self.seen = len(self.out)

    def shows(self, what, good):
        """A picture that is good comes."""
        def look():
            lines = self.picture()
            return lines if good(lines) else None
        return self.until(what, look)

    def press(self, keys):
        self.forget()
        os.write(self.fd, keys)

    def resize(self, rows, columns):
        self.forget()
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ,
                    struct.pack("4H", rows, columns, 0, 0))

    def cooked(self):
        return bool(termios.tcgetattr(self.fd)[3] & termios.ICANON) and \
            bool(termios.tcgetattr(self.fd)[3] & termios.ECHO)

    def restored(self):
        """The terminal is as it was."""
        self.until("end of the page", lambda: self.out.rfind(LEAVE) >
                   self.out.rfind(ENTER))
        assert self.cooked(), "the terminal is not as before"
        tail = self.out[self.out.rfind(LEAVE) - 10:]
        assert b"\x1b[?25h" in tail, "no cursor"

    def close(self):
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.close(self.fd)
        os.close(self.back)
        os.waitpid(self.leader, 0)


class Target:
    def __init__(self):
        self.process = subprocess.Popen(TARGET, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)
        self.pid = self.process.stdout.readline().decode().strip()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def names(lines):
    """The order of the fibers in a picture."""
    return re.findall(r"\b(spins|reads|waits)  +(?:running|ready|blocked|parked)",
                      "\n".join(lines))


def fits(rows, columns):
    return lambda lines: len(lines) <= rows and \
        all(len(line) <= columns for line in lines) and len(lines) >= 5


# ---- cases: with a target that lives, and a top of it ----

def shows_fibers(target, top):
    first = r"crash \(%s\): 3 fibers, 1 running" % target.pid
    lines = top.shows("fibers", lambda lines: re.match(first, lines[0]) and
                      names(lines) == ["spins", "reads", "waits"])
    assert lines[3].split()[:4] == ["%CPU", "ID", "NAME", "STATE"], lines[3]
    assert not top.cooked()
    top.press(b"q")
    top.event(rb"exit 0\n")
    top.restored()


def sorts_by_keys(target, top):
    top.picture()
    for key, order in ((b"N", ["waits", "reads", "spins"]),
                       (b"R", ["spins", "reads", "waits"]),
                       (b"C", ["waits", "spins", "reads"]),
                       (b"R", ["reads", "spins", "waits"]),
                       (b"T", ["spins", "waits", "reads"]),
                       (b"M", ["waits", "reads", "spins"])):
        top.press(key)
        top.shows("order by %s" % key, lambda lines: names(lines) == order)
    top.press(b"h")
    top.shows("help", lambda lines: any("sort by stack" in s for s in lines))
    top.press(b"h")
    top.shows("table", lambda lines: len(names(lines)) == 3)


def keeps_to_the_size(target, top):
    top.shows("24x100", fits(24, 100))
    for rows, columns in ((6, 40), (30, 160), (2, 10)):
        top.resize(rows, columns)
        top.shows("%dx%d" % (rows, columns), lambda lines: (
            len(lines) <= rows and all(len(s) <= columns for s in lines) and
            (rows < 8 or len(names(lines)) == 3)))


def scrolls(target, top):
    top.picture()
    top.press(b"N")
    top.shows("by id", lambda lines: len(names(lines)) == 3)
    top.resize(5, 100)          # one row
    top.shows("the first", lambda lines: names(lines) == ["waits"])
    for keys, name in ((b"\x1b[B", "reads"), (b"\x1b[F", "spins"),
                       (b"\x1b[B", "spins"), (b"\x1b[A", "reads"),
                       (b"\x1b[H", "waits")):
        top.press(keys)
        top.shows(name, lambda lines: names(lines) == [name])


def ends_by_control_c(target, top):
    top.picture()
    top.press(b"\x03")
    top.event(rb"exit 0\n")
    top.restored()


def ends_by_sigterm(target, top):
    top.picture()
    os.kill(top.pid, signal.SIGTERM)
    top.event(rb"signal 15\n")
    top.restored()


def stops_and_goes_on(target, top):
    top.picture()
    top.press(b"\x1a")
    top.event(rb"stopped\n")
    top.restored()
    top.forget()
    os.kill(top.pid, signal.SIGCONT)
    top.shows("fibers again", lambda lines: len(names(lines)) == 3)
    assert not top.cooked()
    top.press(b"q")
    top.event(rb"exit 0\n")
    top.restored()


def stopped_it_can_be_ended(target, top):
    top.picture()
    top.press(b"\x1a")
    top.event(rb"stopped\n")
    os.kill(top.pid, signal.SIGTERM)
    os.kill(top.pid, signal.SIGCONT)
    top.event(rb"signal 15\n")
    top.restored()


def the_process_ends(target, top):
    top.picture()
    target.end()
    top.event(rb"exit 1\n")
    top.restored()
    said = (r"fiberctl: (there is no process %s|process %s (is gone|has no memory))"
            % (target.pid, target.pid)).encode()
    top.until("message", lambda: re.search(said,
                                           top.out[top.out.rfind(LEAVE):]))


CASES = (shows_fibers, sorts_by_keys, keeps_to_the_size, scrolls,
         ends_by_control_c, ends_by_sigterm, stops_and_goes_on,
         stopped_it_can_be_ended, the_process_ends)


def main():
    target = Target()
    for case in CASES:
        name = case.__name__.replace("_", " ")
        top = Top("-d", "0.2", target.pid)
        try:
            case(target, top)
            print("ok", name)
        except AssertionError as error:
            print("not ok %s: %s" % (name, str(error).replace("\n", " ")))
        finally:
            top.close()
    if target.process.poll() is None:
        target.end()


FIBERCTL, TARGET = os.path.abspath(sys.argv[1]), sys.argv[2:]
main()
