#!/usr/bin/python3
"""A device that is lost while the server runs.

usage: lost_server.py PROGRAM FOLDER [compute]
  FOLDER   an empty one, for files of this test
  compute  the device computes; otherwise it is empty (tests/lib/vulkan_layer.c): all answers are the same token"""
import json, os, shutil, signal, sys, threading

sys.path.insert(0, 'tests/lib')
import fault_layer
from fault_layer import Server
from waiting import wait_until

PROGRAM, FOLDER = sys.argv[1:3]
COMPUTES = sys.argv[3:] == ['compute']
LAYER = fault_layer.Layer(PROGRAM, FOLDER, not COMPUTES)
MODEL = 'tests/models/tiny'
LOST = 'the device was lost'
LONG = 'The river was very quiet. Leo likes bread and honey. ' * 8
OTHER = 'A brave owl slept under the tree in the old garden. ' * 8


class Asking(threading.Thread):
    """A request on a thread of its own; `replies` has what came."""

    def __init__(self, server, *texts):
        super().__init__()
        self.server, self.texts, self.replies = server, texts, []
        self.start()

    def run(self):
        for text in self.texts:
            self.replies.append(self.server.ask(text))


def is_lost(reply):
    return reply[0] == 503 and LOST in reply[1] and '\n' not in reply[1]


def the_answer_that_meets_the_loss_fails_and_later_ones_are_those_of_before():
    with Server(LAYER) as s:
        first, other = s.ask('hello'), s.ask('What is 2 + 2?')
        assert first[0] == other[0] == 200, (first, other)
        LAYER.set('lost 0')
        reply = s.ask('hello again')
        assert is_lost(reply), reply
        assert s.ask('hello')[:2] == first[:2] and s.ask('What is 2 + 2?')[:2] == other[:2]
        assert s.metric('device_losses_total') == 1 and s.get('/health')[0] == 200
        told = s.end()
        assert told.count('\n') == 1 and LOST in told, told
    assert LAYER.counts()[2] == 0, 'device memory was not freed'


def answers_that_run_at_the_same_time_fail_and_waiting_ones_do_not():
    with Server(LAYER, '--parallel', '3') as s:
        texts = [[f'question {i} of {k}' for i in range(6)] for k in range(7)]
        asking = [Asking(s, *t) for t in texts]
        wait_until(lambda: s.metric('http_requests_total') >= 8, 'answers')
        LAYER.set('lost 0')
        for a in asking:
            a.join()
        replies = [r for a in asking for r in a.replies]
        lost = [r for r in replies if r[0] != 200]
        assert len(replies) == 42 and 1 <= len(lost) <= 3 and all(map(is_lost, lost)), lost
        assert s.metric('device_losses_total') == 1
        assert s.metric('requests_running') == s.metric('requests_waiting') == 0
        s.end()


def answers_of_a_copy_on_another_device_go_on():
    with Server(LAYER, '--parallel', '2', '--replicate', device='0,0') as s:
        asking = [Asking(s, *(f'question {i} of {k}' for i in range(6))) for k in range(4)]
        wait_until(lambda: s.metric('http_requests_total') >= 6, 'answers')
        LAYER.set('lost 0')
        for a in asking:
            a.join()
        lost = [r for a in asking for r in a.replies if r[0] != 200]
        assert len(lost) == 1 and is_lost(lost[0]), lost
        s.end()


STREAMS = {
    '/v1/chat/completions': {'messages': [{'role': 'user', 'content': 'hello'}]},
    '/v1/completions': {'prompt': 'hello'},
    '/v1/messages': {'messages': [{'role': 'user', 'content': 'hello'}]},
    '/v1/responses': {'input': 'hello'},
}


# Drafts make the number of submissions vary.
def submissions_of(path, body):
    with Server(LAYER, '--draft', 'off') as s:
        with s.post(path, body) as reply:
            reply.read()
        s.end()
    return LAYER.counts()[0]


def a_stream_ends_with_an_error_in_its_dialect():
    for path, body in STREAMS.items():
        body = {**body, 'stream': True, 'ignore_eos': True}
        limit = 'max_output_tokens' if path == '/v1/responses' else 'max_tokens'
        few, many = (submissions_of(path, {**body, limit: n}) for n in (1, 120))
        with Server(LAYER, '--draft', 'off') as s:
            LAYER.set(f'lost {few + (many - few) // 4}')
            with s.post(path, {**body, limit: 120}) as reply:
                text = reply.read().decode()
            events = [json.loads(line[6:]) for line in text.splitlines()
                      if line.startswith('data: ') and line != 'data: [DONE]']
            failed = [e for e in events if e.get('error') or e.get('type') == 'response.failed']
            assert len(events) > 5 and len(failed) == 1 and LOST in json.dumps(failed), (path, text[-600:])
            assert 'finish_reason": "' not in text and 'message_stop' not in text, (path, text[-600:])
            assert s.ask('hello')[0] == 200
            s.end()


def saved_conversations_go_on_and_others_are_computed_again():
    for with_files in True, False:
        files = os.path.join(FOLDER, 'states')
        with Server(LAYER, '--sequences', '1', *(['--state-dir', files] if with_files else [])) as s:
            evicted, current = s.ask(LONG), s.ask(OTHER)
            assert evicted[0] == current[0] == 200
            LAYER.set('lost 0')
            assert is_lost(s.ask('hello'))
            again, evicted_again = s.ask(OTHER), s.ask(LONG)
            assert again[:2] == current[:2] and evicted_again[:2] == evicted[:2], (again, current)
            # The loss comes when `hello` is evaluated: taking its sequence has saved the one of OTHER.
            assert [r[2] > 64 for r in (again, evicted_again)] == [with_files] * 2, (again, evicted_again)
            s.end()


def a_server_that_opens_the_device_says_so_and_other_requests_wait():
    with Server(LAYER) as s:
        s.ask('hello')
        LAYER.set('lost 0', then='hold 0')
        assert is_lost(s.ask('hello'))
        waiting = [Asking(s, f'question {i}') for i in range(3)]
        wait_until(lambda: s.metric('requests_waiting') == 3, 'requests in the queue')
        status, text = s.get('/health')
        assert status == 503 and json.loads(text) == {'status': 'reopening'}, (status, text)
        assert s.metric('device_losses_total') == 1 and s.get('/v1/models')[0] == 200
        with s.post('/tokenize', {'content': 'hello'}) as reply:
            assert json.load(reply)['tokens']
        LAYER.set('none 0')
        for w in waiting:
            w.join()
            assert w.replies[0][0] == 200, w.replies
        assert s.get('/health')[0] == 200
        s.end()


def a_server_that_opens_the_device_ends_when_it_is_asked_to():
    for number in signal.SIGTERM, signal.SIGINT:
        with Server(LAYER) as s:
            LAYER.set('lost 0', then='hold 0')
            assert is_lost(s.ask('hello'))
            waiting = Asking(s, 'hello')
            wait_until(lambda: s.metric('requests_waiting') == 1, 'a request in the queue')
            s.process.send_signal(number)
            LAYER.set('none 0')
            assert s.process.wait(300) == 0, s.process.stderr.read()
            waiting.join()
            assert waiting.replies[0][0] == 503 and LOST not in waiting.replies[0][1], waiting.replies
        assert LAYER.counts()[2] == 0, 'device memory was not freed'


def a_second_loss_ends_the_server():
    with Server(LAYER) as s:
        LAYER.set('lost 0', then='lost 0')
        assert is_lost(s.ask('hello'))
        lines = s.ends_by_itself()
        assert len(lines) == 2 and LOST in lines[1], lines
    with Server(LAYER) as s:
        LAYER.set('lost 0')
        assert is_lost(s.ask('hello')) and s.ask('hello')[0] == 200
        LAYER.set('lost 0')
        assert is_lost(s.ask('hello again'))
        lines = s.ends_by_itself()
        assert len(lines) == 2 and LOST in lines[1], lines
    assert LAYER.counts()[2] == 0, 'device memory was not freed'


def another_model_in_the_directory_ends_the_server():
    model = os.path.join(FOLDER, 'model')
    shutil.copytree(MODEL, model)
    with Server(LAYER, model=model) as s:
        LAYER.set('lost 0', then='hold 0')
        os.remove(os.path.join(model, 'model.safetensors'))
        for name in 'config.json', 'model.safetensors', 'model.safetensors.index.json':
            shutil.copy(os.path.join('tests/models/tiny-mtp', name), os.path.join(model, name))
        assert is_lost(s.ask('hello'))
        LAYER.set('none 0')
        lines = s.ends_by_itself()
        assert len(lines) == 2 and model in lines[1], lines
    shutil.rmtree(model)


def a_traced_run_ends_with_the_first_loss():
    with Server(LAYER, '--trace', os.path.join(FOLDER, 'trace')) as s:
        LAYER.set('lost 0')
        assert is_lost(s.ask('hello'))
        lines = s.ends_by_itself()
        assert len(lines) == 1 and LOST in lines[0], lines


def uses_of_experts_before_the_loss_are_counted():
    usage = os.path.join(FOLDER, 'usage')
    with Server(LAYER, '--usage', usage) as s:
        s.ask('hello')
        LAYER.set('lost 0')
        assert is_lost(s.ask('hello')) and s.ask('hello')[0] == 200
        assert os.path.getsize(usage) > 0
        s.end()


CLAIMS = (the_answer_that_meets_the_loss_fails_and_later_ones_are_those_of_before,
          answers_that_run_at_the_same_time_fail_and_waiting_ones_do_not,
          answers_of_a_copy_on_another_device_go_on, a_stream_ends_with_an_error_in_its_dialect,
          saved_conversations_go_on_and_others_are_computed_again,
          a_server_that_opens_the_device_says_so_and_other_requests_wait,
          a_server_that_opens_the_device_ends_when_it_is_asked_to, a_second_loss_ends_the_server,
          another_model_in_the_directory_ends_the_server, a_traced_run_ends_with_the_first_loss,
          uses_of_experts_before_the_loss_are_counted)
# The others have no text that could be another one, and take minutes.
COMPUTED = (the_answer_that_meets_the_loss_fails_and_later_ones_are_those_of_before,
            a_stream_ends_with_an_error_in_its_dialect, saved_conversations_go_on_and_others_are_computed_again)
sys.exit(fault_layer.run_claims(COMPUTED if COMPUTES else CLAIMS))
