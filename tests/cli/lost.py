#!/usr/bin/python3
"""A device that is lost at one of a run's submissions: one line, status 1, files as they were, memory freed.

usage: lost.py PROGRAM FOLDER [STEP]
  FOLDER  an empty one, for files of this test
  STEP    one of so many submissions is lost, in each kind of run (1: each of them)"""
import functools, json, os, random, subprocess, sys

sys.path.insert(0, 'tests/lib')
import fault_layer

PROGRAM, FOLDER = sys.argv[1:3]
STEP = int(sys.argv[3]) if len(sys.argv) > 3 else 1
LAYER = fault_layer.Layer(PROGRAM, FOLDER)
TINY, MTP = 'tests/models/tiny', 'tests/models/tiny-mtp'
LOST = 'the device was lost'
LONG = 'The river was very quiet. Leo likes bread and honey. ' * 6


def path(name):
    return os.path.join(FOLDER, name)


def read(name):
    if not os.path.exists(path(name)):
        return None
    with open(path(name), 'rb') as f:
        return f.read()


def run(model, arguments, device='0'):
    return subprocess.run([PROGRAM, '-m', model, '--device', device, '-c', '512', '--temp', '0', '--no-think', '-q',
                           *arguments], env=LAYER.environment, capture_output=True, stdin=subprocess.DEVNULL)


def write_files():
    """Makes the inputs of the runs: lines of a batch, a state."""
    with open(path('lines'), 'w') as f:
        for i in range(6):
            print(json.dumps({'id': f'q{i}', 'prompt': f'{LONG if i % 2 else ""} question {i}', 'n': 6,
                              'ignore_eos': True}), file=f)
    LAYER.clear()
    made = run(TINY, ['-p', LONG, '-n', '1', '--ignore-eos', '--prompt-cache', path('state')])
    assert made.returncode == 0, made
    with open(path('text'), 'w') as f:
        f.write('!' * 40)


def sweep(*arguments, model=TINY, device='0', outputs=(), kept=(), step=STEP, n_lines=None):
    """Loses the device at one submission after the other.

    outputs: files that a run writes whole or not at all; kept: files that it replaces whole or leaves as they were;
    n_lines: lines of the output that are always the same."""
    def fixed(stdout):
        return b'\n'.join(stdout.split(b'\n')[:n_lines])

    def begin():
        LAYER.clear()
        for name in outputs:
            if os.path.exists(path(name)):
                os.remove(path(name))
        for name, data in before.items():
            with open(path(name), 'wb') as f:
                f.write(data)

    before = {name: read(name) for name in kept}
    begin()
    right = run(model, arguments, device)
    assert right.returncode == 0, right
    n, whole = LAYER.counts()[0], {name: read(name) for name in outputs}
    assert n > 5 and None not in whole.values(), (n, whole)
    after = {name: read(name) for name in kept}
    n_lost = 0
    for at in range(random.randrange(step), n, step):
        begin()
        LAYER.set(f'lost {at}')
        got = run(model, arguments, device)
        where = f'submission {at} of {n}: {got}'
        assert LAYER.counts()[2] == 0, f'{where}: device memory was not freed'
        # A run may end before the last submission, which computed ahead, is missed.
        if got.returncode == 0:
            assert fixed(got.stdout) == fixed(right.stdout) and not got.stderr, where
            continue
        n_lost += 1
        assert got.returncode == 1 and got.stderr.count(b'\n') == 1, where
        assert got.stderr.startswith(b'moeflux: ') and LOST.encode() in got.stderr, where
        assert fixed(right.stdout).startswith(fixed(got.stdout).rstrip(b'\n')), where
        for name in outputs:
            assert read(name) in (None, whole[name]), f'{where}: wrote a part of {name}'
        for name in kept:
            assert read(name) in (before[name], after[name]), f'{where}: wrote a part of {name}'
        assert not [x for x in os.listdir(FOLDER) if 'part' in x or x.endswith('~')], os.listdir(FOLDER)
    assert n_lost > (n // step) // 2, (n_lost, n)


def loading_a_short_prompt_and_decoding():
    sweep('-p', 'hello', '-n', '6', '--ignore-eos', '--draft', 'off')


def chunks_of_a_prompt_and_readback():
    sweep('-p', LONG, '-n', '1', '--logits', path('logits'), '--logits-all', '--hidden', path('hidden'),
          outputs=('logits', 'hidden'))


def decoding_with_the_host_s_sampler():
    sweep('-p', 'hello', '-n', '4', '--ignore-eos', '--temp', '1', '--seed', '1', '--typical-p', '0.9', '--draft',
          'off')


def chains_of_drafts():
    sweep('-p', 'hello', '-n', '24', '--ignore-eos', '--draft', f'file:{path("text")}')


def the_layer_of_multi_token_prediction():
    sweep('-p', 'hello', '-n', '8', '--ignore-eos', '--draft', 'mtp', model=MTP)


def writing_a_state():
    sweep('-p', LONG, '-n', '1', '--ignore-eos', '--prompt-cache', path('new'), outputs=('new',))


def reading_and_replacing_a_state():
    sweep('-p', LONG + 'More.', '-n', '1', '--ignore-eos', '--prompt-cache', path('state'), kept=('state',))


def experts_that_are_read_from_disk():
    sweep('-p', 'hello', '-n', '4', '--ignore-eos', '--memory', '2M', '--gpu-memory', '18M', '--usage', path('usage'),
          outputs=('usage',))


def experts_on_the_cpu():
    sweep('-p', 'hello', '-n', '4', '--ignore-eos', '--n-cpu-moe', '2')
    sweep('-p', 'hello', '-n', '4', '--ignore-eos', '--experts', 'cpu:0.5')


def two_devices():
    sweep('-p', 'hello', '-n', '4', '--ignore-eos', device='0,0')


def perplexity():
    sweep('--perplexity', path('text'), '--chunk', '16', n_lines=1)


def results_of(text):
    return [json.loads(line) for line in text.splitlines()]


def batched_decode(*more, device='0'):
    """Results before the loss stay; a run with the same file afterwards makes the others."""
    arguments = ['--batch', path('lines'), '--output', path('results'), *more]

    def begin():
        LAYER.clear()
        if os.path.exists(path('results')):
            os.remove(path('results'))

    begin()
    right = run(TINY, arguments, device)
    assert right.returncode == 0, right
    n, whole = LAYER.counts()[0], read('results').decode()
    texts = {r['id']: r['text'] for r in results_of(whole)}
    for at in range(random.randrange(STEP), n, STEP):
        begin()
        LAYER.set(f'lost {at}')
        got = run(TINY, arguments, device)
        where = f'submission {at} of {n}: {got}'
        assert LAYER.counts()[2] == 0, f'{where}: device memory was not freed'
        if got.returncode == 0:
            continue
        assert got.returncode == 1 and got.stderr.count(b'\n') == 1 and LOST.encode() in got.stderr, where
        some = results_of((read('results') or b'').decode())
        assert all(texts[r['id']] == r['text'] for r in some) and len(some) <= len(texts), (where, some)
        if at % 16 == 0:
            LAYER.clear()
            assert run(TINY, arguments, device).returncode == 0
            assert {r['id']: r['text'] for r in results_of(read('results').decode())} == texts, where


def batched_decode_of_four():
    batched_decode('--parallel', '4')


def lines_one_after_the_other():
    batched_decode()


def batched_decode_on_copies():
    batched_decode('--parallel', '4', '--replicate', device='0,0')


random.seed(len(sys.argv))
write_files()
sys.exit(fault_layer.run_claims((
    loading_a_short_prompt_and_decoding, chunks_of_a_prompt_and_readback, decoding_with_the_host_s_sampler,
    chains_of_drafts, the_layer_of_multi_token_prediction, writing_a_state, reading_and_replacing_a_state,
    experts_that_are_read_from_disk, experts_on_the_cpu, two_devices, perplexity, batched_decode_of_four,
    lines_one_after_the_other, batched_decode_on_copies)))
