#!/usr/bin/python3
"""Saved conversations, in a terminal and in scripts. usage: sessions.py PROGRAM MODEL"""
import fcntl, functools, json, os, re, shlex, signal, subprocess, sys, tempfile

import terminal
from terminal import GREEDY, MODEL, PROGRAM, Terminal, preloaded, run_once, run_tests
from waiting import wait_until

CODE = 'The code of Max is 5128. The river was very quiet. What is the code of Max?'
AGAIN = 'What is the code of Max?'
SUM = 'What is 47 + 38?'
ICELAND = 'What is the capital of Iceland?'


def start(state, *arguments, **environment):
    t = Terminal([*GREEDY, *arguments], state, **environment)
    return t, t.wait_for_prompt()


def quit(t):
    t.type('\x04')
    assert t.end() == 0


def folder(state):
    return os.path.join(state, 'moeflux', 'sessions')


def saved(state, name):
    with open(os.path.join(folder(state), name + '.json')) as f:
        return json.load(f)


def line(text):
    """Returns the answer: the text up to the end of its line."""
    return text.split('\n')[0]


@functools.cache
def unbroken(*questions):
    """Returns the answer to the last question in a conversation that is not interrupted."""
    with tempfile.TemporaryDirectory() as state:
        t, _ = start(state)
        answers = [line(t.ask(q)) for q in questions]
        quit(t)
    return answers[-1]


@functools.cache
def answer_without_history(question):
    return line(run_once('--no-think', '-p', question))


def a_saved_conversation_continues_in_another_process(state):
    expected = unbroken(CODE, SUM, AGAIN)
    assert expected != answer_without_history(AGAIN)
    t, _ = start(state)
    t.ask(CODE)
    assert 'saved as codes' in t.ask('/save codes')
    t.ask(SUM)
    assert '* codes' in t.ask('/sessions')
    quit(t)
    for suffix in ('json', 'state'):
        mode = os.stat(os.path.join(folder(state), 'codes.' + suffix)).st_mode
        assert mode & 0o077 == 0, 'others can read it'
    t, banner = start(state, '--resume', 'codes')
    assert CODE in banner and '5128' in banner and '85' in banner, banner
    assert line(t.ask(AGAIN)) == expected
    stats = t.ask('/stats')
    # The state has all tokens except for the end token of the last answer.
    assert int(re.search(r'prompt +(\d+) tokens', stats)[1]) < 30, stats
    assert CODE in t.ask('/show')
    quit(t)
    assert [turn['question'] for turn in saved(state, 'codes')['turns']] == [CODE, SUM, AGAIN]


def a_slow_save_after_an_answer_shows_its_progress(state):
    control = os.path.join(state, 'fault')
    with open(control, 'w') as f:
        f.write('lag 0 1000000000')
    t, _ = start(state, MOEFLUX_FAULT=control, MOEFLUX_FAULT_ROOT=folder(state), **preloaded('fault_shim'))
    t.ask(SUM)
    t.type('/save sum\r')
    t.wait_for(rb'writing the state.*%')
    assert 'saved as sum' in t.wait_for_prompt()
    quit(t)


def load_replaces_the_conversation_and_clear_leaves_the_file(state):
    t, _ = start(state)
    t.ask(CODE)
    t.ask('/save codes')
    t.ask('/clear')
    t.ask(SUM)
    assert len(saved(state, 'codes')['turns']) == 1
    assert '5128' in t.ask('/load codes')
    assert line(t.ask(AGAIN)) == unbroken(CODE, AGAIN)
    assert 'already' in t.ask('/clear') + t.ask('/save codes'), 'another session was overwritten'
    assert 'deleted' in t.delete('codes')
    assert os.listdir(folder(state)) == []
    assert 'no sessions' in t.ask('/sessions')
    quit(t)


def undo_goes_back_before_the_question(state):
    t, _ = start(state)
    assert 'nothing was asked' in t.ask('/undo')
    t.ask(CODE)
    t.ask('/save s')
    t.ask(ICELAND)
    assert 'taken back' in t.ask('/undo ')
    assert len(saved(state, 's')['turns']) == 1
    assert line(t.ask(AGAIN)) == unbroken(CODE, AGAIN)
    for _ in range(2):
        t.ask('/undo')
    assert line(t.ask(AGAIN)) == answer_without_history(AGAIN)
    quit(t)


def retry_gives_another_answer_in_place_of_the_last(state):
    flags = ['--temp', '1.5', '--top-k', '0', '--top-p', '1', '-s', '3', '--no-think', '-n', '12',
             '--ignore-eos']
    t = Terminal(flags, state)
    t.wait_for_prompt()
    assert 'nothing was asked' in t.ask('/retry')
    tokens = lambda: int(re.search(r'context +(\d+) tokens', t.ask('/stats'))[1])
    answers, sizes = [t.ask('Tell me a story.')], [tokens()]
    t.ask('/save s')
    for _ in range(2):
        answers.append(t.ask('/retry'))
        stats = t.ask('/stats')
        assert 'prompt' not in stats, f'the question was computed again: {stats}'
        sizes.append(tokens())
    assert len(set(map(line, answers))) == 3, answers
    assert len(set(sizes)) == 1, sizes
    assert len(saved(state, 's')['turns']) == 1
    quit(t)
    # A single run with the seed that /stats shows gives the same answer.
    said = subprocess.run([PROGRAM, '-m', MODEL, *flags, '-s', '5', '-p', 'Tell me a story.'],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True).stdout
    assert line(said) == line(answers[2]), (said, answers)
    t, _ = start(state)
    t.ask(SUM)
    assert 'same answer' in t.ask('/retry')
    quit(t)


def edit_asks_the_changed_question(state):
    t, _ = start(state, VISUAL="", EDITOR="sed -i -e s/47/48/")
    t.ask(CODE)
    t.ask(SUM)
    said = t.ask('/edit')
    assert 'What is 48 + 38?' in said and '86' in said, said
    assert line(t.ask(AGAIN)) == unbroken(CODE, 'What is 48 + 38?', AGAIN)
    quit(t)
    script = os.path.join(state, 'editor')
    t, _ = start(state, VISUAL='sh ' + shlex.quote(script))
    t.ask(SUM)
    for editor, reason in (('true', 'is the same'), ('truncate -s 0 "$1"', 'empty'), ('false', 'status 1'),
                           (r'printf "a\000b" >"$1"', 'NUL'), ('no-such-editor "$1"', 'status 127'),
                           # The editor does not ignore the signals that moeflux ignores.
                           ('kill -PIPE $$', 'status 141'), ('ulimit -c 0; kill -XFSZ $$', 'status 153')):
        with open(script, 'w') as f:
            f.write(editor)
        assert reason in t.ask('/edit'), (editor, reason)
        assert 'What is 47 + 38?' in t.ask('/show')
    quit(t)


def an_edited_question_that_does_not_fit_leaves_the_old_one(state):
    script = os.path.join(state, 'editor')
    t, _ = start(state, '-c', '256', VISUAL='sh ' + shlex.quote(script))
    t.ask(CODE)
    t.ask(ICELAND)
    t.ask('/save s')
    with open(script, 'w') as f:
        f.write('seq 400 >"$1"')
    assert 'the context holds 256' in t.ask('/edit')
    shown = t.ask('/show')
    assert CODE in shown and ICELAND in shown, shown
    with open(script, 'w') as f:
        f.write(f'echo "{AGAIN}" >"$1"')
    assert line(t.ask('/edit').split('\n', 1)[1]) == unbroken(CODE, AGAIN)
    quit(t)
    assert [turn['question'] for turn in saved(state, 's')['turns']] == [CODE, AGAIN]


def names_are_checked(state):
    t, _ = start(state)
    t.ask(SUM)
    assert 'which name' in t.ask('/save')
    for name in ('../x', '.x', '-x', 'a b', 'x/y', 'é', 'x' * 65):
        assert 'name: expected' in t.ask('/save ' + name), name
    for command in ('/load', '/delete'):
        assert 'no session nothing' in t.ask(command + ' nothing')
        assert 'name: expected' in t.ask(command + ' ../x')
        assert 'which session' in t.ask(command)
    assert not os.path.exists(folder(state)) or os.listdir(folder(state)) == []
    quit(t)
    for arguments in (['--resume', 'nothing'], ['--resume', '../x'], ['--prompt-cache', 'x']):
        t = Terminal(arguments, state)
        status = t.end()
        assert status == 2 and t.seen.count(b'\n') == 1, (status, t.seen)


def a_crash_loses_only_the_unfinished_answer(state):
    t = Terminal(['--temp', '0', '--no-think', '--ignore-eos', '-n', '8'], state)
    t.wait_for_prompt()
    t.ask(CODE)
    t.ask('/save crash')
    t.ask(SUM)
    t.type('Tell me a story about an owl.\r')
    t.wait_for(rb'Once upon|owl\.\s*\n(\x1b\[\?2004l)?[^\x1b]')
    os.kill(t.pid, signal.SIGKILL)
    assert t.end() == -signal.SIGKILL
    turns = saved(state, 'crash')['turns']
    assert ['answer' in turn for turn in turns] in ([True, True, False], [True, True, True]), turns
    t, banner = start(state, '--resume', 'crash')
    assert 'owl' in banner, banner
    if 'answer' not in turns[2]:
        assert '/retry' in banner, banner
        assert len(line(t.ask('/retry'))) > 0
        assert 'answer' in saved(state, 'crash')['turns'][2]
    quit(t)


def ctrl_c_keeps_the_question_and_what_was_said(state):
    t = Terminal(['--temp', '0', '--no-think', '--ignore-eos'], state)
    t.wait_for_prompt()
    t.type('Tell me a story about an owl.\r')
    t.wait_for(rb'Once upon')
    t.type(b'\x03')
    t.wait_for_prompt()
    t.ask('/save s')
    turn = saved(state, 's')['turns'][0]
    assert turn['stop_reason'] == 'interrupted' and turn['answer'].startswith('Once upon'), turn
    quit(t)


def ctrl_c_in_a_long_question_keeps_it_for_retry(state):
    question = 'The code of Max is 5128. ' + 'The river was very quiet. ' * 120 + AGAIN
    path = os.path.join(state, 'long')
    with open(path, 'w') as f:
        f.write(question)
    t, _ = start(state, VISUAL='cp ' + shlex.quote(path))
    t.ask(SUM)
    t.ask('/save s')
    t.type('/edit\r')
    # The question is shown before it is computed.
    t.wait_for(rb'quiet\. What is the code of Max\?')
    t.type(b'\x03')
    stopped = t.wait_for_prompt()
    turn = saved(state, 's')['turns'][0]
    assert turn['question'] == question and ('/retry' in stopped) != ('answer' in turn), (turn, stopped)
    assert '5128' in t.ask('/retry')
    assert line(t.ask(SUM)) == unbroken(SUM)
    assert [x['question'] for x in saved(state, 's')['turns']] == [question, SUM]
    quit(t)


def a_lost_or_broken_state_costs_time_and_nothing_else(state):
    expected = unbroken(CODE, SUM, AGAIN)
    t, _ = start(state)
    t.ask(CODE)
    t.ask(SUM)
    t.ask('/save s')
    quit(t)
    path = os.path.join(folder(state), 's.state')
    whole = open(path, 'rb').read()
    # tests/model/test_snapshot.c has every truncation and every changed byte of a header.
    for broken in (None, whole[:-1], whole[:2000] + b'\xaa' + whole[2001:]):
        with open(path, 'wb') as f:
            f.write(broken or b'')
        if broken is None:
            os.unlink(path)
        t, banner = start(state, '--resume', 's')
        assert 's.state: ' in banner and 'computed again' in banner, banner
        assert line(t.ask(AGAIN)) == expected
        t.ask('/undo')
        quit(t)
        assert open(path, 'rb').read()[:8] == whole[:8], 'the state was not written again'


def broken_texts_and_other_models_are_refused(state):
    t, _ = start(state)
    t.ask(SUM)
    t.ask('/save s')
    quit(t)
    path = os.path.join(folder(state), 's.json')
    good = saved(state, 's')
    turn = good['turns'][0]
    t, _ = start(state)
    for change, field in (({'fingerprint': '0123456789abcdef'}, 'another model'),
                          ({'fingerprint': 'x'}, 'fingerprint'), ({'tokens': [1, -2]}, 'token'),
                          ({'tokens': [99999] * 40}, 'token'), ({'moeflux_session': 2}, 'moeflux_session'),
                          ({'turns': 3}, 'turns'), ({'turns': [turn, turn]}, 'tokens_before'),
                          ({'turns': []}, 'no questions'),
                          ({'turns': [{**turn, 'tokens_asked': 10**9}]}, 'tokens_asked'),
                          ({'turns': [{**turn, 'stop_reason': 'x'}]}, 'stop_reason')):
        with open(path, 'w') as f:
            json.dump({**good, **change}, f)
        said = t.ask('/load s')
        assert field in said, (change, said)
        if 'fingerprint' in change:
            other = Terminal([*GREEDY, '--resume', 's'], state)
            status = other.end()
            said = re.sub(rb'[^\n]*\r\x1b\[K', b'', other.seen).decode()
            assert status in (1, 2) and field in said and said.count('\n') == 1, (change, status, said)
    with open(path, 'w') as f:
        f.write(json.dumps(good)[:-9])
    assert 's.json' in t.ask('/load s')
    assert 's.json' in t.ask('/sessions')
    assert '85' in t.ask(SUM)
    quit(t)
    with open(path, 'w') as f:
        json.dump(good, f)
    t = Terminal([*GREEDY, '-c', '21', '--resume', 's'], state)
    assert t.end() == 2 and b'the context holds 21' in t.seen, t.seen


def two_programs_with_one_session_lose_nothing(state):
    a, _ = start(state)
    a.ask(CODE)
    a.ask('/save codes')
    b, banner = start(state, '--resume', 'codes')
    assert CODE in banner, banner
    # A program that opens it and ends makes no change.
    c, _ = start(state, '--resume', 'codes')
    quit(c)
    assert 'changed' not in b.ask(SUM)
    said = a.ask(ICELAND)
    assert said.count('session codes was changed by another program') == 1, said
    assert 'saved as codes-2' in said and 'Reykjav' in said, said
    assert 'changed' not in a.ask(AGAIN) + b.ask(AGAIN)
    assert '* codes-2' in a.ask('/sessions')
    assert '* codes ' in b.ask('/sessions')
    # The other program finds the change too, and that codes-2 is taken.
    c, _ = start(state, '--resume', 'codes')
    c.ask(SUM)
    b.type('/undo\r')
    assert 'saved as codes-3' in b.wait_for_prompt(), 'codes-2 is taken'
    for t in (a, b, c):
        quit(t)
    questions = lambda name: [turn['question'] for turn in saved(state, name)['turns']]
    assert questions('codes') == [CODE, SUM, AGAIN, SUM], questions('codes')
    assert questions('codes-2') == [CODE, ICELAND, AGAIN], questions('codes-2')
    assert questions('codes-3') == [CODE, SUM], questions('codes-3')
    files = [name + suffix for name in ('codes', 'codes-2', 'codes-3') for suffix in ('.json', '.state')]
    assert sorted(os.listdir(folder(state))) == sorted(files), os.listdir(folder(state))
    t, _ = start(state, '--resume', 'codes-2')
    # A session that another program deleted is saved again, unless there is a new one of its name.
    os.unlink(os.path.join(folder(state), 'codes-2.json'))
    assert 'changed' not in t.ask(SUM)
    assert len(questions('codes-2')) == 4
    other, _ = start(state, '--resume', 'codes')
    other.delete('codes-2')
    assert 'saved as codes-2,' in other.ask('/save codes-2')
    assert 'saved as codes-2-2,' in t.ask('/save codes-2')
    quit(t)
    quit(other)


def has_waiter(path):
    """Whether some program waits for a lock of this file."""
    inode = f':{os.stat(path).st_ino} '
    with open('/proc/locks') as locks:
        return any('->' in line and inode in line for line in locks)


def a_save_waits_for_the_save_of_another_program(state):
    t, _ = start(state)
    t.ask(CODE)
    t.ask('/save s')
    # Another program has the lock and is about to replace the file.
    lock = os.open(folder(state), os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    before = saved(state, 's')
    t.type(ICELAND + '\r')
    t.wait_for(re.escape(ICELAND).encode() + rb'\s*\n')
    wait_until(lambda: has_waiter(folder(state)), 'the save waits for the lock')
    assert saved(state, 's') == before
    other = {**before, 'system': 'of the other program'}
    with open(os.path.join(folder(state), 's.json'), 'w') as f:
        json.dump(other, f)
    os.close(lock)
    said = t.wait_for_prompt()
    assert 'session s was changed by another program' in said and 'saved as s-2' in said, said
    assert saved(state, 's') == other
    quit(t)


def files_of_killed_saves_are_removed(state):
    t, _ = start(state)
    t.ask(SUM)
    t.ask('/save s')
    names = [f's.{kind}.moeflux-part{i}' for kind in ('json', 'state') for i in (0, 2)]
    left = [os.path.join(folder(state), name) for name in names]
    left.append(os.path.join(state, 'moeflux', 'history.moeflux-part0'))
    for path in left:
        open(path, 'w').close()
    t.ask(ICELAND)
    quit(t)
    assert [path for path in left if os.path.exists(path)] == []
    for path in left:
        open(path, 'w').close()
    t, _ = start(state)
    t.delete('s')
    quit(t)
    assert os.listdir(folder(state)) == [] and [path for path in left if os.path.exists(path)] == []


def the_history_is_kept_and_a_link_to_nowhere_stays(state):
    t, _ = start(state)
    t.ask('/stats')
    t.ask('/help')
    quit(t)
    path = os.path.join(state, 'moeflux', 'history')
    lines = open(path).read().split('\n')
    assert lines[0] == '_HiStOrY_V2_' and lines[1:] == ['/stats', '/help', ''], lines
    assert os.stat(path).st_mode & 0o777 == 0o600
    t, _ = start(state)
    t.type(b'\x1b[A\r')
    assert '/save NAME' in t.wait_for_prompt(), 'the last line was not recalled'
    quit(t)
    os.unlink(path)
    os.symlink('/dev/null', path)
    t, _ = start(state)
    assert 'history' not in t.ask('/stats')
    quit(t)
    assert os.readlink(path) == '/dev/null'


def control_characters_of_a_session_reach_no_terminal(state):
    """Texts, model and file name of a session may come from others."""
    evil = 'pwned \x1b]0;title\x07 \u009b31m red'
    t, _ = start(state)
    t.ask(SUM)
    t.ask('/save s')
    quit(t)
    whole = saved(state, 's')
    turn = {**whole['turns'][0], 'question': evil, 'answer': evil}
    with open(os.path.join(folder(state), 's.json'), 'w') as f:
        json.dump({**whole, 'model': evil + '\n* other', 'turns': [turn]}, f)
    with open(os.path.join(os.fsencode(folder(state)), b'n\x1b[31m\n\x9bm.json'), 'w') as f:
        f.write('{}')
    t, banner = start(state, '--resume', 's')
    listing = t.ask('/sessions')
    said = [banner, t.ask('/show'), listing]
    quit(t)
    assert 'pwned \ufffd]0;title\ufffd \ufffd31m red' in banner, banner
    # The line editor draws with sequences of its own.
    for text in map(lambda s: re.sub(r'\x1b\[[0-9;]*[A-Za-z]', '', s), said):
        assert not re.search('[\x00-\x08\x0b-\x1f\x7f-\x9f]', text), text
    assert '\n* other' not in listing and '\ufffd* other' in listing, listing
    assert not any('\x1b[31m' in text for text in said), said


def the_template_decides_whether_old_thinking_stays(state):
    """The conversation has the answer to one prompt with all messages, and reuses their common prefix."""
    model = os.path.join(state, 'model')
    os.mkdir(model)
    for name in os.listdir(MODEL):
        os.symlink(os.path.join(os.path.abspath(MODEL), name), os.path.join(model, name))
    with open(os.path.join(model, 'chat_template.jinja'), 'w') as f:
        f.write("{% for m in messages %}"
                "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
                "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}")
    requests = os.path.join(state, 'requests')
    with open(requests, 'w') as f:
        json.dump({'messages': [{'role': 'user', 'content': SUM}, {'role': 'assistant', 'content': '85'},
                                {'role': 'user', 'content': ICELAND}]}, f)
    single = json.loads(subprocess.run([PROGRAM, '-m', model, '--temp', '0', '--batch', requests], check=True,
                                      capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout)
    try:
        terminal.MODEL = model
        t = Terminal(['--temp', '0'], state)
        t.wait_for_prompt()
        t.ask(SUM)
        t.ask(ICELAND)
        stats = t.ask('/stats')
        t.ask('/save thoughts')
        quit(t)
    finally:
        terminal.MODEL = MODEL
    first, second = saved(state, 'thoughts')['turns']
    assert first['thinking'] and first['answer'] == '85', first
    assert second.get('thinking', '') == single.get('thinking', ''), (second, single)
    assert second['answer'] == single['text'], (second, single)
    assert second['tokens_asked'] == single['prompt_tokens'], (second, single)
    assert int(re.search(r'reused +(\d+) tokens', stats)[1]) >= 15, stats


def a_script_continues_a_saved_conversation(state):
    expected, then = unbroken(CODE, AGAIN), unbroken(CODE, AGAIN, SUM)
    assert expected != answer_without_history(AGAIN)
    t, _ = start(state)
    t.ask(CODE)
    t.ask('/save s')
    quit(t)

    def ask(*arguments, status=0, text=None):
        stdin = {'input': text} if text else {'stdin': subprocess.DEVNULL}
        ran = subprocess.run([PROGRAM, '-m', MODEL, *GREEDY, '--resume', 's', *arguments], text=True,
                             capture_output=True, env={**os.environ, 'XDG_STATE_HOME': state}, **stdin)
        assert ran.returncode == status, (ran.returncode, ran.stderr)
        return ran
    assert ask('-p', AGAIN).stdout == expected + '\n'
    assert ask(text=SUM).stdout == then + '\n'
    turns = saved(state, 's')['turns']
    assert [turn['question'] for turn in turns] == [CODE, AGAIN, SUM], turns
    assert all(turn['answer'] for turn in turns), turns
    # A question that cannot be asked changes nothing; one line has the reason.
    before = saved(state, 's')
    for arguments, status in (['-p', 'x ' * 200, '-c', '200'], 2), (['-p', ' '], 2):
        ran = ask(*arguments, status=status)
        assert ran.stdout == '' and ran.stderr.count('\n') == 1 and ran.stderr.startswith('moeflux: '), ran
        assert saved(state, 's') == before
    # Ctrl-C keeps the beginning of the answer.
    script = subprocess.Popen([PROGRAM, '-m', MODEL, *GREEDY, '--ignore-eos', '--resume', 's',
                               '-p', 'Tell me a story.'], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
                              env={**os.environ, 'XDG_STATE_HOME': state},
                              preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    begin = os.read(script.stdout.fileno(), 1)
    script.send_signal(signal.SIGINT)
    rest = script.communicate()[0]
    assert script.returncode == 130, script.returncode
    last = saved(state, 's')['turns'][-1]
    assert last['question'] == 'Tell me a story.' and last['stop_reason'] == 'interrupted', last
    assert (begin + rest).decode().rstrip('\n') == last['answer'].rstrip('\n'), (begin + rest, last)
    t, banner = start(state, '--resume', 's')
    assert 'Tell me a story.' in banner, banner
    quit(t)


def help_lists_the_commands(state):
    t, _ = start(state)
    text = t.ask('/help')
    for command in ('/save NAME', '/load NAME', '/sessions', '/delete NAME', '/undo', '/retry', '/edit',
                    '/show'):
        assert command in text, (command, text)
    quit(t)


def main():
    return run_tests(a_saved_conversation_continues_in_another_process,
                     a_slow_save_after_an_answer_shows_its_progress,
                     load_replaces_the_conversation_and_clear_leaves_the_file,
                     undo_goes_back_before_the_question,
                     retry_gives_another_answer_in_place_of_the_last, edit_asks_the_changed_question,
                     an_edited_question_that_does_not_fit_leaves_the_old_one, names_are_checked,
                     a_crash_loses_only_the_unfinished_answer, ctrl_c_keeps_the_question_and_what_was_said,
                     ctrl_c_in_a_long_question_keeps_it_for_retry,
                     a_lost_or_broken_state_costs_time_and_nothing_else,
                     broken_texts_and_other_models_are_refused, two_programs_with_one_session_lose_nothing,
                     a_save_waits_for_the_save_of_another_program, files_of_killed_saves_are_removed,
                     control_characters_of_a_session_reach_no_terminal,
                     the_history_is_kept_and_a_link_to_nowhere_stays,
                     the_template_decides_whether_old_thinking_stays, a_script_continues_a_saved_conversation,
                     help_lists_the_commands)


if __name__ == '__main__':
    sys.exit(main())
