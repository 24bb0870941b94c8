#!/usr/bin/python3
"""Device memory that runs out at one of a run's allocations, or from there on: the run has the same output, or ends
with one line and status 3; a server refuses the request and serves the next one.

usage: out_of_memory.py PROGRAM FOLDER [STEP [compute]]
  FOLDER   an empty one, for files of this test
  STEP     one of so many allocations fails, in each kind of run (1: each of them)
  compute  a run of each kind that goes on without memory computes, too"""
import json, os, random, subprocess, sys

sys.path.insert(0, 'tests/lib')
import fault_layer
from fault_layer import Server

PROGRAM, FOLDER = sys.argv[1:3]
STEP = int(sys.argv[3]) if len(sys.argv) > 3 else 1
COMPUTES = sys.argv[4:] == ['compute']
EMPTY, FULL = (fault_layer.Layer(PROGRAM, FOLDER, is_empty) for is_empty in (True, False))
TINY, MTP = 'tests/models/tiny', 'tests/models/tiny-mtp'
LONG = 'The river was very quiet. Leo likes bread and honey. ' * 6
DOCUMENT = LONG * 5
KINDS = ('memory', 'full')


def path(name):
    return os.path.join(FOLDER, name)


def text_of(stdout):
    """Returns what must be the same: the lines of a batch in their order, without times."""
    if not stdout.startswith('{'):
        return stdout
    results = [json.loads(line) for line in stdout.splitlines()]
    return sorted((r['id'], r.get('text'), r.get('error')) for r in results)


def run(layer, model, device, arguments):
    return subprocess.run([PROGRAM, '-m', model, '--device', device, '-c', '512', '--temp', '0', '--no-think', '-q',
                           *arguments], env=layer.environment, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL)


def compute(model, device, arguments, fault):
    """Compares the whole output of a device that computes, with the fault and without it."""
    FULL.clear()
    right = run(FULL, model, device, arguments)
    FULL.set(fault)
    got = run(FULL, model, device, arguments)
    if got.returncode == 3 and got.stderr.count('\n') == 1:
        return # threads have asked in another order
    assert got.returncode == 0 and text_of(got.stdout) == text_of(right.stdout), (fault, got, right)


def places(n):
    """Most allocations are those of the model, which are alike in all runs; the last ones are others."""
    last = max(n - 70, 0)
    return [*range(random.randrange(STEP), last, 10 * STEP), *range(last + random.randrange(STEP), n, STEP)]


def sweep(*arguments, model=TINY, device='0', each=False):
    EMPTY.clear()
    right = run(EMPTY, model, device, arguments)
    assert right.returncode == 0, right
    n = EMPTY.counts()[1]
    went_on = None
    for kind in KINDS:
        for at in range(random.randrange(STEP), n, STEP) if each else places(n):
            EMPTY.clear()
            EMPTY.set(f'{kind} {at}')
            got = run(EMPTY, model, device, arguments)
            where = f'{kind} {at} of {n}: {got}'
            assert EMPTY.counts()[2] == 0, f'{where}: device memory was not freed'
            if got.returncode == 0:
                assert text_of(got.stdout) == text_of(right.stdout) and not got.stderr, where
                went_on = went_on or f'{kind} {at}'
                continue
            assert got.returncode == 3 and got.stderr.count('\n') == 1, where
            assert got.stderr.startswith('moeflux: '), where
    if COMPUTES and went_on:
        compute(model, device, arguments, went_on)


def opening_and_one_answer():
    sweep('-p', 'hello', '-n', '6', '--ignore-eos', each=True)


def a_long_prompt():
    sweep('-p', DOCUMENT, '-n', '2', '--ignore-eos')


def drafts_of_repeated_text():
    sweep('-p', 'hello', '-n', '12', '--ignore-eos', '--draft', 'ngram')


def drafts_of_the_program_s_choice():
    sweep('-p', 'hello', '-n', '12', '--ignore-eos', model=MTP)


def drafts_of_a_layer():
    sweep('-p', 'hello', '-n', '12', '--ignore-eos', '--draft', 'mtp', model=MTP)


def experts_that_are_read_from_disk():
    sweep('-p', 'hello', '-n', '4', '--ignore-eos', '--memory', '2M', '--gpu-memory', '18M')


def two_devices():
    sweep('-p', 'hello', '-n', '4', '--ignore-eos', device='0,0')


def a_state_in_a_file():
    # A run that cannot load the file computes what is in it, so a device that computes writes it.
    FULL.clear()
    assert run(FULL, TINY, '0', ['-p', LONG, '-n', '1', '--prompt-cache', path('state')]).returncode == 0
    sweep('-p', LONG, '-n', '2', '--ignore-eos', '--prompt-cache-ro', path('state'))


def a_batch_of_sixteen():
    with open(path('lines'), 'w') as f:
        for i in range(20):
            print(json.dumps({'id': f'q{i}', 'prompt': f'{LONG if i % 3 else ""} question {i}', 'n': 6,
                              'ignore_eos': True}), file=f)
    sweep('--batch', path('lines'), '--parallel', '16')


def asked(server):
    return [server.ask(text, 6) for text in (DOCUMENT, LONG, 'hello', LONG + 'More.', 'hello')]


def a_server_refuses_and_goes_on():
    flags = '--sequences', '2', '--parallel', '2'
    with Server(EMPTY, *flags) as s:
        s.end()
    n_load = EMPTY.counts()[1]
    with Server(EMPTY, *flags) as s:
        right = [r[:2] for r in asked(s)]
        s.end()
    n = EMPTY.counts()[1]
    assert n > n_load + 5 and all(r[0] == 200 for r in right), (n_load, n, right)
    for kind in KINDS:
        for at in range(n_load + random.randrange(STEP), n, STEP):
            with Server(EMPTY, *flags) as s:
                EMPTY.set(f'{kind} {at}')
                for reply, wanted in zip(asked(s), right):
                    assert reply[:2] == wanted or (reply[0] == 503 and '\n' not in reply[1]), (kind, at, reply)
                EMPTY.set('none 0')
                assert [r[:2] for r in asked(s)] == right, (kind, at)
                s.end()
            assert EMPTY.counts()[2] == 0, f'{kind} {at}: device memory was not freed'


def a_saved_conversation_waits_for_memory():
    flags = '--sequences', '1', '--state-dir', path('states')
    with Server(EMPTY, *flags) as s:
        assert s.ask(DOCUMENT)[0] == 200
        s.end()
    with Server(EMPTY, *flags) as s:
        assert s.ask('hello')[0] == 200
        EMPTY.set('full 0')
        assert s.ask(DOCUMENT)[0] == 503
        EMPTY.set('none 0')
        reply = s.ask(DOCUMENT)
        assert reply[0] == 200 and reply[2] > 256, reply
        assert s.end() == ''


random.seed(len(sys.argv))
sys.exit(fault_layer.run_claims((
    opening_and_one_answer, a_long_prompt, drafts_of_repeated_text, drafts_of_the_program_s_choice,
    drafts_of_a_layer, experts_that_are_read_from_disk, two_devices, a_state_in_a_file, a_batch_of_sixteen,
    a_server_refuses_and_goes_on, a_saved_conversation_waits_for_memory)))
