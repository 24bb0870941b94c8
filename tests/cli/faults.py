#!/usr/bin/python3
"""Reads that fail: a disk with faults (fault_shim.c), and files that shrink.

usage: faults.py PROGRAM MODEL
  MODEL  a conversion of tests/models/tiny, which the test may damage"""
import os, re, subprocess, sys
from terminal import GREEDY, MODEL, PROGRAM, Terminal, preloaded, run_tests

# There are few slots, so nearly every expert is read again and again.
STREAM = ['--memory', '400K', '-t', '2']
QUESTION, ANSWER = 'What is the capital of Iceland?', 'The capital of Iceland is Reykjavík.'
FOREVER = 10**9
FAULT = r'layer \d+ expert \d+: ' + re.escape(MODEL) + \
    r'/packed_experts/layer_\d\d\.bin: \d+ of \d+ bytes at offset \d+'
AGAIN = '; the read is tried again'
PREFETCH = ('none', 'previous', 'router', 'both')
SUM, SUM_ANSWER = 'What is 47 + 38?', '85'


class Disk:
    """A disk whose reads have the fault that set() chooses."""

    def __init__(self, folder):
        self.control = os.path.join(folder, 'fault')
        self.environment = {'MOEFLUX_FAULT': self.control, **preloaded('fault_shim')}

    def set(self, kind=None, first=0, last=FOREVER):
        # A rename, so that no read sees half of the file.
        with open(self.control + '.new', 'w') as f:
            f.write(f'{kind} {first} {last}' if kind else 'none')
        os.rename(self.control + '.new', self.control)

    def ask(self, *arguments, question=QUESTION):
        return subprocess.run([PROGRAM, '-m', MODEL, *GREEDY, *STREAM, '--expert-io', 'pread',
                               '-p', question, *arguments],
                              capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              env={**os.environ, **self.environment})


def must_fail(result, pattern):
    """Status 1, one line that names the place, and a true beginning of the answer. An error that may pass has
    a line of its own before."""
    lines = result.stderr.splitlines()
    n = 1 if 'then the file ends' in pattern else 2
    assert result.returncode == 1 and len(lines) == n, (result.returncode, result.stderr)
    assert re.fullmatch(r'moeflux: ' + pattern, lines[-1]), (lines[-1], pattern)
    assert n == 1 or re.fullmatch(r'moeflux: ' + pattern + AGAIN, lines[0]), (lines[0], pattern)
    assert ANSWER.startswith(result.stdout.rstrip('\n')), result.stdout


def must_answer(result):
    assert result.returncode == 0 and not result.stderr and result.stdout == ANSWER + '\n', result


def n_reads(disk, prefetch):
    disk.set()
    text = disk.ask('--prefetch', prefetch, '--json=full').stdout
    return int(re.search(r'"reads": (\d+)', text)[1])


def failed_reads_are_reported_and_end_the_run(folder):
    disk = Disk(folder)
    for kind, what in (('eio', FAULT + ': Input/output error'),
                       ('enospc', FAULT + ': No space left on device'),
                       ('zero', FAULT + ', then the file ends')):
        disk.set(kind)
        must_fail(disk.ask(), what)
    disk.set()
    must_answer(disk.ask())


def a_disk_that_dies_in_the_answer_ends_it_with_its_true_beginning(folder):
    disk = Disk(folder)
    seen = set()
    # Without predictions the number of reads is the same in each run.
    n = n_reads(disk, 'none')
    for prefetch in PREFETCH:
        for part in (0.3, 0.6, 0.95):
            disk.set('eio', int(n * part))
            result = disk.ask('--prefetch', prefetch)
            must_fail(result, FAULT + ': Input/output error')
            seen.add(result.stdout)
    assert len(seen) > 2, f'no fault came in the middle of the answer: {seen}'


def one_failed_read_is_tried_again_and_changes_nothing(folder):
    disk = Disk(folder)
    n = n_reads(disk, 'both')
    for i in range(8):
        at = n * i // 9
        disk.set('eio', at, at + 1)
        result = disk.ask('--prefetch', 'both')
        assert result.returncode == 0 and result.stdout == ANSWER + '\n', result
        assert re.fullmatch(r'moeflux: ' + FAULT + ': Input/output error' + AGAIN + r'\n', result.stderr), result


def short_slow_and_interrupted_reads_change_nothing(folder):
    disk = Disk(folder)
    for prefetch in 'none', 'both':
        for kind in ('short', 'slow', 'eintr'):
            disk.set(kind)
            must_answer(disk.ask('--prefetch', prefetch))


def ask_in_vain(t, pattern, warns=False):
    """Asks a question that gets no answer: one line has the reason, the next one /retry."""
    text = t.ask(SUM)
    lines = re.sub(r'\x1b\[[0-9;]*[A-Za-z]', '', text).split('\n')
    assert not warns or re.fullmatch('moeflux: ' + pattern + AGAIN, lines.pop(0)), text
    assert len(lines) == 3 and re.fullmatch('moeflux: ' + pattern, lines[0]), text
    assert '/retry' in lines[1] and lines[2] == '> ', text


def the_conversation_survives_a_failed_read(folder):
    disk = Disk(folder)
    disk.set()
    t = Terminal(GREEDY + STREAM + ['--expert-io', 'pread'], folder, **disk.environment)
    t.wait_for_prompt()
    assert ANSWER in t.ask(QUESTION)
    disk.set('eio')
    # A question fails while the disk does; the program goes on.
    for i in range(2):
        ask_in_vain(t, FAULT + ': Input/output error', warns=i == 0)
    disk.set()
    assert t.ask(SUM).startswith(SUM_ANSWER + '\n')
    assert ANSWER in t.ask(QUESTION)
    t.type(b'\x04')
    assert t.end() == 0


def cut(path, keep):
    with open(path, 'r+b') as f:
        content = f.read()
        f.truncate(int(len(content) * keep))
    return content


def the_conversation_survives_a_file_that_shrinks(folder):
    names = sorted(name for name in os.listdir(MODEL + '/packed_experts') if name.endswith('.bin'))
    files = [os.path.join(MODEL, 'packed_experts', name) for name in names]
    name = re.escape(MODEL) + r'/packed_experts/layer_\d+\.bin '
    for mode in ('mmap', 'pread', 'uring', 'direct'):
        t = Terminal(GREEDY + STREAM + ['--expert-io', mode], folder)
        t.wait_for_prompt()
        assert ANSWER in t.ask(QUESTION), mode
        contents = [cut(path, 0.1) for path in files]
        try:
            ask_in_vain(t, name + 'has 88473 bytes, it had 884736 when it was opened')
        finally:
            for path, content in zip(files, contents):
                with open(path, 'r+b') as f:
                    f.write(content)
        # The bytes are as before, but nobody can know that.
        ask_in_vain(t, name + 'was written in place since it was opened')
        t.type(b'\x04')
        assert t.end() == 0, mode


def main():
    return run_tests(failed_reads_are_reported_and_end_the_run,
                     a_disk_that_dies_in_the_answer_ends_it_with_its_true_beginning,
                     one_failed_read_is_tried_again_and_changes_nothing,
                     short_slow_and_interrupted_reads_change_nothing, the_conversation_survives_a_failed_read,
                     the_conversation_survives_a_file_that_shrinks)


if __name__ == '__main__':
    sys.exit(main())
