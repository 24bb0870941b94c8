#!/usr/bin/python3
"""Writes that fail: each call on each file that the program writes (fault_shim.c). One line reports it, the
status is not 0, the old file is unchanged, no part of a file is left. usage: write_faults.py PROGRAM MODEL"""
import errno, json, os, re, resource, shutil, subprocess, sys
from terminal import GREEDY, MODEL, PROGRAM, Terminal, preloaded, run_tests

FOREVER = 10**9
# This memory is so little that experts are read again and again.
RUN = ['-m', MODEL, '--device', 'cpu', '--temp', '0', '--memory', '400K', '-t', '2', '--expert-io', 'pread']
SOURCE = 'tests/models/qwen-odd/mlx'
FULL, BROKEN = (errno.ENOSPC, 'No space left on device'), (errno.EIO, 'Input/output error')


class Calls:
    """A disk that logs the calls on files below `root`, and can make them fail."""

    def __init__(self, folder):
        self.root = os.path.join(folder, 'disk')
        self.control, self.log = os.path.join(folder, 'fault'), os.path.join(folder, 'log')
        self.environment = {'MOEFLUX_FAULT': self.control, 'MOEFLUX_FAULT_LOG': self.log,
                            'MOEFLUX_FAULT_ROOT': self.root, **preloaded('fault_shim')}
        os.mkdir(self.root)

    def path(self, name):
        return os.path.join(self.root, name)

    def set(self, fault=None):
        """(kind, first, last, errno); None: nothing fails."""
        with open(self.control, 'w') as f:
            f.write(' '.join(map(str, fault or ['none'])))

    def take_log(self):
        """Returns [(call, path, whether it failed)] since the last take_log()."""
        if not os.path.exists(self.log):
            return []
        with open(self.log) as f:
            lines = [line.rstrip('\n').split(' ') for line in f]
        os.unlink(self.log)
        return [(words[0], words[1], len(words) > 2) for words in lines]

    def run(self, arguments, fault=None):
        self.set(fault)
        self.take_log()
        return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              env={**os.environ, **self.environment})

    def files(self):
        """Returns {name: bytes} of the files below the root."""
        paths = [os.path.join(folder, name) for folder, _, names in os.walk(self.root) for name in names]
        return {os.path.relpath(path, self.root): open(path, 'rb').read() for path in paths}

    def put(self, files):
        shutil.rmtree(self.root)
        os.mkdir(self.root)
        for name, content in files.items():
            os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
            with open(self.path(name), 'wb') as f:
                f.write(content)


def some(calls):
    """Returns indices: the first, a middle and the last of consecutive writes, and all other calls."""
    chosen, i = [], 0
    while i < len(calls):
        n = 1
        while i + n < len(calls) and calls[i + n][:2] == calls[i][:2]:
            n += 1
        chosen += sorted({i, i + n // 2, i + n - 1})
        i += n
    return chosen


def faults(calls, chosen):
    """Yields (index, fault, message). A failed write writes nothing or half, and the disk stays full; other
    calls fail once."""
    for i in chosen:
        if 'write' in calls[i][0]:
            yield i, ('call', i, FOREVER, FULL[0]), FULL[1]
            yield i, ('half', i, FOREVER, FULL[0]), FULL[1]
        else:
            yield i, ('call', i, i + 1, BROKEN[0]), BROKEN[1]


def must_report(result, message, pattern, more=()):
    """The status is 1, and stderr one line; `more`: patterns of other lines that it may have."""
    lines = [line for line in result.stderr.splitlines() if not any(re.fullmatch(p, line) for p in more)]
    assert result.returncode == 1 and len(lines) == 1, (result.returncode, result.stderr)
    assert re.fullmatch(f'moeflux: (--[a-z-]* )?{pattern}.*: {message}', lines[0]), (lines[0], pattern, message)


def output(folder, arguments, name, old, answer=''):
    """Lets each call on an output fail, with an old file and without one. The last argument names the output.
    Returns the names of the calls that failed."""
    disk, failed = Calls(folder), set()
    arguments = [*RUN, *arguments, disk.path(name)]
    for before in {}, {name: old}:
        disk.put(before)
        result = disk.run(arguments)
        assert result.returncode == 0, result
        calls, after = disk.take_log(), disk.files()
        assert after.keys() == {name} and after != before, after.keys()
        renamed = [call[0] for call in calls].index('rename')
        for i, fault, message in faults(calls, some(calls)):
            disk.put(before)
            result = disk.run(arguments, fault)
            hit = [call for call in disk.take_log() if call[2]]
            assert hit and hit[0][0] == calls[i][0], (fault, hit)
            # The sync of the directory comes after the rename, so the whole new file is there.
            must_report(result, message, re.escape(disk.root), [r'.*tokens of the prompt reused'])
            assert disk.files() == (after if i > renamed else before), (calls[i], disk.files().keys())
            assert result.stdout == answer, result.stdout
            failed.add(calls[i][0])
    shutil.rmtree(disk.root)
    return failed


def logits_and_hidden_states_appear_whole_or_not_at_all(folder):
    for flag in '--logits', '--hidden':
        failed = output(folder, ['-p', 'What is 47 + 38?', flag], 'out', b'old')
        assert failed == {'pwrite', 'fsync', 'rename'}, failed


def usage_is_the_old_one_or_the_new_one(folder):
    old = b'moeflux usage 1 8 32\n0 0 5\nend\n'
    failed = output(folder, ['-p', 'What is 47 + 38?', '--no-think', '--usage'], 'usage', old, '85\n')
    assert failed == {'write', 'fsync', 'rename'}, failed


def trace_is_the_old_one_or_the_new_one(folder):
    old = b'moeflux trace 1 8 32 4 27648\nend\n'
    failed = output(folder, ['-p', 'What is 47 + 38?', '--no-think', '--trace'], 'trace', old, '85\n')
    assert failed == {'write', 'fsync', 'rename'}, failed


def a_prompt_cache_is_the_old_one_or_the_new_one_and_the_answer_is_given(folder):
    cache = os.path.join(folder, 'other')
    subprocess.run([PROGRAM, *RUN, '-p', 'Who?', '-n', '1', '--prompt-cache', cache], check=True,
                   capture_output=True)
    with open(cache, 'rb') as f:
        old = f.read()
    failed = output(folder, ['-p', 'What is 47 + 38?', '--no-think', '--prompt-cache'], 'cache', old, '85\n')
    assert failed == {'write', 'fsync', 'rename'}, failed


def ids(content):
    return [json.loads(line)['id'] for line in content.decode().splitlines()]


def results_of_a_batch_are_whole_lines_and_can_be_continued(folder):
    disk, asked = Calls(folder), os.path.join(folder, 'asked')
    with open(asked, 'w') as f:
        f.writelines(f'{{"id": {i}, "prompt": "What is 4{i} + 38?", "n": 3}}\n' for i in range(1, 5))
    arguments = [*RUN, '--no-think', '--batch', asked, '-o', disk.path('results')]
    summary = [r'moeflux: \d answered, 0 failed.*']
    assert disk.run(arguments).returncode == 0
    calls, whole = disk.take_log(), disk.files()['results']
    assert [call[0] for call in calls] == ['write'] * 4 + ['fsync'] * 2, calls
    failed = set()
    for i in range(len(calls)):
        writes = i < 4
        # All later calls fail, or the file can still be cut to its last whole line.
        kinds = (('call', FOREVER), ('half', FOREVER), ('half', i + 2)) if writes else (('call', i + 1),)
        for kind, last in kinds:
            disk.put({})
            result = disk.run(arguments, (kind, i, last, FULL[0] if writes else BROKEN[0]))
            failed |= {call[0] for call in disk.take_log() if call[2]}
            cut = kind == 'half' and last == FOREVER
            message = FULL[1] + '; .*run again' * (last == FOREVER) if writes else BROKEN[1]
            must_report(result, message, re.escape(disk.root), summary)
            there = disk.files()['results']
            assert cut or there == b'' or there.endswith(b'\n'), there
            kept = there[:there.rfind(b'\n') + 1]
            assert ids(kept) == list(range(1, min(i, 4) + 1)), (i, kind, there)
            again = disk.run(arguments)
            assert again.returncode == 0 and (disk.path('results') in again.stderr) == cut, again
            assert disk.files()['results'].startswith(kept) and ids(disk.files()['results']) == [1, 2, 3, 4]
    # The last line of an earlier run is cut, or lacks only its line end.
    for left in whole[:-40], whole[:-1]:
        disk.put({'results': left})
        result = disk.run(arguments, ('call', 0, 1, BROKEN[0]))
        must_report(result, BROKEN[1], re.escape(disk.path('results')))
        failed |= {call[0] for call in disk.take_log() if call[2]}
        assert disk.files() == {'results': left}
    assert failed == {'write', 'fsync', 'ftruncate'}, failed


def a_conversion_that_fails_is_continued(folder):
    disk = Calls(folder)
    arguments = ['convert', SOURCE, disk.path('dst'), '-t', '2']
    assert disk.run(arguments).returncode == 0
    calls, whole = disk.take_log(), disk.files()
    renamed = calls.index(('rename', disk.path('dst'), False))
    failed = set()
    for i, fault, message in faults(calls, some(calls)):
        disk.put({})
        result = disk.run(arguments, fault)
        # Calls of several threads may fail; the program reports one.
        failed |= {call[0] for call in disk.take_log() if call[2]}
        must_report(result, message, '.*')
        there = disk.files()
        assert not [name for name in there if 'moeflux-part' in name], (calls[i], there.keys())
        assert (i > renamed) == any(name.startswith('dst/') for name in there), (calls[i], there.keys())
        if i > renamed:
            assert there == whole, calls[i]
            continue
        again = disk.run(arguments)
        assert again.returncode == 0 and disk.files() == whole, (calls[i], again.stderr)
    assert failed == {'write', 'pwrite', 'fsync', 'fdatasync', 'rename', 'ftruncate'}, failed


def files_that_cannot_be_mapped_are_named_or_read(folder):
    disk = Calls(folder)
    disk.root = disk.environment['MOEFLUX_FAULT_ROOT'] = os.path.realpath(MODEL)
    plain = ['-m', MODEL, '--device', 'cpu', *GREEDY, '-p', 'What is 47 + 38?']
    assert disk.run([*plain, '--expert-io', 'mmap']).stdout == '85\n'
    calls = disk.take_log()
    assert calls and {call[0] for call in calls} == {'mmap'}, calls
    for i in 0, len(calls) - 1:
        # All later calls fail too: the program maps a file to use it in place, then again to copy from it.
        fault = ('call', i, FOREVER, errno.ENOMEM)
        result = disk.run([*plain, '--expert-io', 'mmap'], fault)
        assert result.stdout == ''
        must_report(result, 'Cannot allocate memory',
                    '.*' + re.escape(disk.root) + r'/packed_experts/layer_\d\d\.bin .*mapped')
        result = disk.run([*plain, '--stats'], fault)
        assert result.returncode == 0 and result.stdout == '85\n', result
        assert re.search(r'read by +(direct|uring|pread)', result.stderr), result.stderr


# ---- conversations ----

ON_CPU = [*GREEDY, '--device', 'cpu']
SUM, ICELAND = 'What is 47 + 38?', 'What is the capital of Iceland?'


def converse(disk, arguments, *lines, status=0):
    """Returns what the program prints after each line, and after the last one."""
    t = Terminal([*ON_CPU, *arguments], disk.root, **disk.environment)
    t.wait_for_prompt()
    said = [re.sub(r'\x1b\[[0-9;]*[A-Za-z]', '', t.ask(line)) for line in lines]
    t.type(b'\x04')
    assert t.end() == status, (status, said, t.seen)
    return [*said, t.seen.decode()]


def a_saved_session_is_the_old_one_or_the_new_one_and_its_loss_is_reported(folder):
    disk = Calls(folder)
    # The history is not part of this test.
    os.makedirs(disk.path('moeflux'))
    os.symlink('/dev/null', disk.path('moeflux/history'))
    sessions = disk.path('moeflux/sessions')
    disk.environment['MOEFLUX_FAULT_ROOT'] = sessions
    disk.set()
    converse(disk, [], SUM, '/save s')
    read = lambda: {name: open(os.path.join(sessions, name), 'rb').read() for name in os.listdir(sessions)}
    old = read()
    assert sorted(old) == ['s.json', 's.state'], old.keys()

    def put_back():
        shutil.rmtree(sessions)
        os.mkdir(sessions, 0o700)
        for name, content in old.items():
            with open(os.path.join(sessions, name), 'wb') as f:
                f.write(content)

    disk.take_log()
    converse(disk, ['--resume', 's'], ICELAND)
    calls, new = disk.take_log(), read()
    # The question, the answer, and at the end the state.
    renames = [i for i, call in enumerate(calls) if call[0] == 'rename']
    assert [os.path.basename(calls[i][1]) for i in renames] == ['s.json', 's.json', 's.state'], calls
    for i in some(calls):
        put_back()
        disk.set(('half' if calls[i][0] == 'write' else 'call', i, FOREVER, FULL[0]))
        said = ''.join(converse(disk, ['--resume', 's'], ICELAND, status=1))
        lines = re.findall(r'(?m)^moeflux: (.*)$', said)
        assert lines, (calls[i], said)
        assert all(x.startswith(sessions) and x.endswith(FULL[1]) for x in lines), (calls[i], said)
        assert 'Reykjav' in said, said
        there = read()
        assert sorted(there) == ['s.json', 's.state'], there.keys()
        questions = len(json.loads(there['s.json'])['turns'])
        assert questions == (1 if i <= renames[0] else 2), (calls[i], questions)
        assert i > renames[0] or there['s.json'] == old['s.json']
        assert i <= renames[1] or there['s.json'] == new['s.json']
        assert there['s.state'] == (new if i > renames[2] else old)['s.state'], calls[i]
    disk.set()
    assert '85' in converse(disk, ['--resume', 's'], '/show')[0]


def a_history_is_the_old_one_or_the_new_one_and_its_loss_is_reported(folder):
    disk = Calls(folder)
    disk.set()
    converse(disk, [], '/stats')
    path = disk.path('moeflux/history')
    with open(path, 'rb') as f:
        old = f.read()
    disk.take_log()
    converse(disk, [], '/help')
    calls = [call[0] for call in disk.take_log()]
    # The shim cannot replace libedit's stream; there a limit on the size of files is the full disk.
    assert calls == ['fsync', 'rename', 'fsync'], calls
    for i in None, 0, 1, 2:
        # The file is larger than the limit below and a stream's buffer.
        with open(path, 'wb') as f:
            f.write(old + b'x' * 20000 + b'\n')
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        disk.set(None if i is None else ('call', i, FOREVER, errno.EIO))
        if i is None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
        try:
            said = converse(disk, [], '/help', '/help', status=1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        lines = re.findall(r'(?m)^moeflux: (.*)$', ''.join(said))
        reason = 'File too large' if i is None else BROKEN[1]
        assert len(lines) == 1 and f'{reason}; the history ' in lines[0], (i, said)
        assert path in lines[0] or i == 2, lines
        with open(path, 'rb') as f:
            assert (b'/help' in f.read()) == (i == 2), i
        assert os.listdir(disk.path('moeflux')) == ['history'], os.listdir(disk.path('moeflux'))


def main():
    return run_tests(logits_and_hidden_states_appear_whole_or_not_at_all, usage_is_the_old_one_or_the_new_one,
                     trace_is_the_old_one_or_the_new_one,
                     a_prompt_cache_is_the_old_one_or_the_new_one_and_the_answer_is_given,
                     results_of_a_batch_are_whole_lines_and_can_be_continued,
                     a_conversion_that_fails_is_continued,
                     files_that_cannot_be_mapped_are_named_or_read,
                     a_saved_session_is_the_old_one_or_the_new_one_and_its_loss_is_reported,
                     a_history_is_the_old_one_or_the_new_one_and_its_loss_is_reported)


if __name__ == '__main__':
    sys.exit(main())
