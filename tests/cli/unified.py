#!/usr/bin/python3
"""A GPU that has the host's memory, and a slow one, played by tests/lib/vulkan_layer.c.

usage: unified.py PROGRAM FOLDER
  FOLDER  an empty one, for files of this test"""
import json, subprocess, sys

sys.path.insert(0, 'tests/lib')
import fault_layer

PROGRAM, FOLDER = sys.argv[1:3]
LAYER = fault_layer.Layer(PROGRAM, FOLDER)
FLAGS = ['-m', 'tests/models/tiny', '--device', '0', '-c', '512', '--temp', '0', '--no-think']
# No submission may take longer: drivers of desktops give a device up after 2 s.
LONGEST_NS = 500_000_000


def run(arguments, **environment):
    LAYER.clear()
    got = subprocess.run([PROGRAM, *FLAGS, *arguments], env={**LAYER.environment, **environment},
                         capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert got.returncode == 0, got
    return got


def integrated(arguments, budget, used=0):
    return run(arguments, MOEFLUX_VK_KIND='integrated', MOEFLUX_VK_BUDGET=f'{budget} {used}')


def plan(*arguments):
    return json.loads(integrated(['--plan', '--json'], *arguments).stdout)


def memory_is_counted_once():
    for budget, used, free in ((600_000_000, 100_000_000, 500_000_000), (600_000_000, 10**15, 600_000_000)):
        p = plan(budget, used)
        assert p['unified'] and p['device_free_bytes'] == free and p['device_bytes'] <= free, p
        assert p['driver_bytes'] == p['host_slots'] == p['cpu_scratch_bytes'] == 0, p
    # A driver may offer more than the host has.
    p = plan(10**15)
    assert p['unified'] and p['device_bytes'] <= p['host_free_bytes'], p


def experts_are_read_into_their_slots():
    ask = ['-p', 'hello', '-n', '8', '--ignore-eos', '-q', '--draft', 'off', '--stats', '--json=full']
    read, copied = [], []
    for flags in ([], ['--gpu-memory', '18M', '--chunk', '16']):
        got = integrated([*ask, *flags], 600_000_000)
        read.append(json.loads(got.stdout)['stats']['read_bytes'])
        copied.append(LAYER.log_line()[5])
    expert = plan(600_000_000)['slot_bytes']
    assert read[1] > read[0] and read[1] >= 4 * expert, (read, expert)
    assert copied[1] <= copied[0] + expert, (copied, read)


def submissions_to_a_slow_device_are_short():
    ask = ['-p', 'hello', '-n', '3', '--ignore-eos', '-q', '--draft', 'off']
    right = run(ask)
    got = run(ask, MOEFLUX_VK_SLOW='1000000')
    longest, total = LAYER.log_line()[3:5]
    # The prompt takes seconds, and a token 0.4 s.
    assert total > 8 * LONGEST_NS and longest <= LONGEST_NS, (longest, total)
    assert got.stdout == right.stdout, (got, right)


sys.exit(fault_layer.run_claims((memory_is_counted_once, experts_are_read_into_their_slots,
                                 submissions_to_a_slow_device_are_short)))
