#!/usr/bin/python3
"""A device that is lost (tests/lib/vulkan_layer.c): what a run does then.

usage: lost.py PROGRAM MODEL FOLDER
  FOLDER  an empty one, for files of this test"""
import os, subprocess, sys

PROGRAM, MODEL, FOLDER = sys.argv[1:4]
LAYER = os.path.join(os.path.dirname(PROGRAM), 'tests')
FAULT, LOG = os.path.join(FOLDER, 'fault'), os.path.join(FOLDER, 'log')
ENVIRONMENT = {**os.environ, 'VK_LAYER_PATH': LAYER, 'VK_INSTANCE_LAYERS': 'VK_LAYER_MOEFLUX_test',
               'MOEFLUX_VK_FAULT': FAULT, 'MOEFLUX_VK_LOG': LOG}
GREEDY = ['-m', MODEL, '--device', '0', '-c', '256', '--temp', '0', '--no-think']
LOST = 'the device was lost'


def set_fault(text):
    with open(FAULT + '.new', 'w') as f:
        f.write(text)
    os.rename(FAULT + '.new', FAULT)


def last_log():
    with open(LOG) as f:
        return [int(n) for n in f.read().splitlines()[-1].split()]


def run(*arguments):
    return subprocess.run([PROGRAM, *GREEDY, *arguments], env=ENVIRONMENT, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL)


def a_run_ends_with_one_line_and_leaves_files_as_they_were():
    cache = os.path.join(FOLDER, 'cache')
    ask = ['-p', 'hello', '-n', '4', '--ignore-eos', '--prompt-cache', cache]
    right = run(*ask)
    assert right.returncode == 0, right
    with open(cache, 'rb') as f:
        before = f.read()
    n = last_log()[0]
    for at in (0, n // 3):
        set_fault(f'lost {at}')
        got = run(*ask, '-q', '--logits', os.path.join(FOLDER, 'logits'))
        assert got.returncode == 1 and got.stderr.count('\n') == 1, got
        assert got.stderr.startswith('moeflux: ') and LOST in got.stderr, got
        assert not os.path.exists(os.path.join(FOLDER, 'logits'))
        assert last_log()[2] == 0, 'device memory was not freed'
        with open(cache, 'rb') as f:
            assert f.read() == before


failed = False
for claim in (a_run_ends_with_one_line_and_leaves_files_as_they_were,):
    try:
        claim()
        print(f'[       OK ] {claim.__name__}')
    except AssertionError as fault:
        print(f'    {claim.__name__}: {fault}\n[  FAILED  ] {claim.__name__}')
        failed = True
sys.exit(failed)
