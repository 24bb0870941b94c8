#!/usr/bin/python3
"""Drafts in a conversation and in the server: the same bytes as without. usage: draft.py PROGRAM MODEL"""
import json, os, sys, tempfile, urllib.error, urllib.request

from server import Server
from terminal import MODEL, PROGRAM, Terminal, run_tests

REPEATS = 'Write the story of the cat again and again. The cat sat on the mat. The cat sat on the mat.'
KIND = os.environ.get('DRAFT', 'ngram')
TALK = 'Tell of the cat again and again.'


def talk(state, kind):
    """A conversation with /undo and /retry that is saved, continued in another process, and undone there.
    Returns what was printed."""
    flags = ['--no-think', '-n', '60', '-s', '5', '--temp', '0.8', '--ignore-eos', '--no-speed', '--draft', kind]
    said = []
    for turn in range(2):
        t = Terminal([*flags, *(['--resume', 'cats'] if turn else [])], state)
        said.append(t.wait_for_prompt())
        for line in [TALK, 'What is 47 + 38?', '/undo', TALK, '/retry', '/save cats'][turn:]:
            said.append(t.ask(line))
            if turn == 0 or line != '/retry':
                continue
            break
        t.type('\x04')
        assert t.end() == 0
    return said


def a_conversation_with_undo_retry_and_resume_is_the_same(_):
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        plain, drafted = talk(a, 'off'), talk(b, KIND)
    assert plain == drafted, (plain, drafted)


def ask(server, path, body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(),
                                     {'Content-Type': 'application/json'})
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.load(reply)


def metric(server, name):
    with urllib.request.urlopen(server.url + '/metrics', timeout=300) as reply:
        lines = reply.read().decode().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f'moeflux_{name} ')))


def a_servers_answers_are_the_same_and_counted(_):
    server = Server(PROGRAM, MODEL, '--device', 'cpu', '--draft', 'off', '--temp', '0')
    body = {'messages': [{'role': 'user', 'content': REPEATS}], 'max_tokens': 150, 'ignore_eos': True, 'seed': 3,
            'enable_thinking': False}
    plain = ask(server, '/v1/chat/completions', body)
    assert metric(server, 'drafted_tokens_total') == 0
    details = plain['usage']['completion_tokens_details']
    assert details == {'accepted_prediction_tokens': 0, 'rejected_prediction_tokens': 0}, details
    drafted = ask(server, '/v1/chat/completions', {**body, 'draft': 'ngram', 'draft_max': 5})
    details = drafted['usage']['completion_tokens_details']
    accepted, rejected = details['accepted_prediction_tokens'], details['rejected_prediction_tokens']
    assert plain['choices'] == drafted['choices'] and accepted > 0, (plain, drafted)
    assert metric(server, 'drafted_tokens_total') == accepted + rejected
    assert metric(server, 'accepted_tokens_total') == accepted
    # The first token comes from the prompt's logits.
    n = drafted['usage']['completion_tokens'] - 1
    assert n - accepted == metric(server, 'draft_evaluations_total'), (n, accepted)
    for wrong in {'draft': 'file:/etc/hostname'}, {'draft': 'mtp'}, {'draft_max': 8}, {'draft_max': 0}:
        try:
            ask(server, '/v1/chat/completions', {**body, **wrong})
            assert False, wrong
        except urllib.error.HTTPError as refused:
            error = json.load(refused)['error']
            assert refused.code == 400 and error['param'] in wrong, error
    server.end()


def a_server_with_the_layer_counts_its_drafts(_):
    server = Server(PROGRAM, MODEL, '--device', 'cpu', '--draft', 'mtp', '--temp', '0')
    body = {'messages': [{'role': 'user', 'content': TALK}], 'max_tokens': 100, 'ignore_eos': True, 'seed': 3,
            'enable_thinking': False}
    plain = ask(server, '/v1/chat/completions', {**body, 'draft': 'off'})
    assert metric(server, 'drafted_tokens_total') == 0
    for kind in {}, {'draft': 'mtp', 'draft_max': 2}:
        drafted = ask(server, '/v1/chat/completions', {**body, **kind})
        details = drafted['usage']['completion_tokens_details']
        assert plain['choices'] == drafted['choices'] and details['accepted_prediction_tokens'] > 10, drafted
    assert metric(server, 'accepted_tokens_total') > 20
    server.end()


if __name__ == '__main__':
    sys.exit(run_tests(a_conversation_with_undo_retry_and_resume_is_the_same,
                       a_server_with_the_layer_counts_its_drafts if KIND == 'mtp' else
                       a_servers_answers_are_the_same_and_counted))
