#!/usr/bin/python3
"""The program in a terminal: a conversation typed into a pseudo-terminal. usage: terminal.py PROGRAM MODEL"""
import fcntl, os, pty, re, select, signal, struct, subprocess, sys, tempfile, termios, time

from waiting import PATIENCE_S, wait_until

PROGRAM, MODEL = sys.argv[1:3]
GREEDY = ['--temp', '0', '--no-think']
PROMPT = rb'(?m)^(\x1b\[[0-9;?]*[A-Za-z])*> '


def preloaded(shim):
    """Returns the environment of a program with tests/lib/SHIM.c between it and the system."""
    library = os.path.join(os.path.dirname(PROGRAM), 'tests', shim + '.so')
    assert os.path.exists(library), library
    environment = {'LD_PRELOAD': library}
    # The sanitizer's library must otherwise be the first one.
    if 'ASAN_OPTIONS' in os.environ:
        environment['ASAN_OPTIONS'] = os.environ['ASAN_OPTIONS'] + ':verify_asan_link_order=0'
    return environment


class Terminal:
    def __init__(self, arguments, state, **environment):
        self.seen, self.has_prompted = b'', False
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.pop('NO_COLOR', None)
            os.environ.update({'TERM': 'xterm', 'XDG_STATE_HOME': state, 'EDITRC': '/nonexistent',
                               **environment})
            # A program in the background of a shell, or under nohup, inherits that some signals are ignored.
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.execv(PROGRAM, [PROGRAM, '-m', MODEL] + arguments)

    def resize(self, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack('HHHH', 40, columns, 0, 0))

    def read(self):
        """Reads what comes within 0.1 s. Returns False when the program has closed the terminal."""
        if not select.select([self.fd], [], [], 0.1)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            data = b''
        self.seen += data.replace(b'\r\n', b'\n')
        return bool(data)

    def wait(self, what, condition):
        """Reads until the condition is true, and returns its value."""
        end = time.monotonic() + PATIENCE_S
        while not (result := condition()):
            assert time.monotonic() < end and self.read(), f'{what} did not come: {self.seen[-500:]}'
        return result

    def wait_for(self, pattern):
        """Reads until the pattern is there; returns and forgets what came up to its end, less the progress
        bars
        and what asks for marks around pasted text."""
        found = self.wait(pattern, lambda: re.search(pattern, self.seen))
        text, self.seen = self.seen[:found.end()], self.seen[found.end():]
        return re.sub(r'\x1b\[\?2004[hl]|[^\n]*\r\x1b\[K', '', text.decode())

    def wait_for_prompt(self, pattern=PROMPT):
        """The editor prints its prompt and then takes the terminal: what is typed between is echoed twice."""
        text = self.wait_for(pattern)
        self.wait('the line editor', lambda: not termios.tcgetattr(self.fd)[3] & termios.ICANON)
        self.has_prompted = True
        return text

    def type(self, text):
        os.write(self.fd, text if isinstance(text, bytes) else text.encode())

    def ask(self, text):
        """Types a line at the prompt, the first of which it waits for, and returns what is printed until the next one."""
        if not self.has_prompted:
            self.wait_for_prompt()
        self.type(text + '\r')
        self.wait_for(re.escape(text.encode()) + rb'\s*\n')
        return self.wait_for_prompt()

    def delete(self, name):
        """Deletes a saved conversation, and returns what is printed until the next prompt."""
        self.type('/delete ' + name + '\r')
        self.wait_for(rb'\[y/N\] ')
        return self.ask('y')

    def end(self):
        """Reads until the program ends, and returns its status."""
        end = time.monotonic() + PATIENCE_S
        while self.read():
            assert time.monotonic() < end, f'the end did not come: {self.seen[-500:]}'
        ended = []
        wait_until(lambda: ended.append(os.waitpid(self.pid, os.WNOHANG)) or ended[-1][0], 'the program ends')
        return os.waitstatus_to_exitcode(ended[-1][1])


def run_once(*arguments):
    return subprocess.run([PROGRAM, '-m', MODEL, '--temp', '0', *arguments], capture_output=True, text=True,
                          check=True, stdin=subprocess.DEVNULL).stdout


def answers_turn_after_turn(state):
    t = Terminal(GREEDY, state)
    banner = t.wait_for_prompt()
    assert '/help' in banner, banner
    assert '85' in t.ask('What is 47 + 38?')
    assert 'Reykjavík' in t.ask('What is the capital of Iceland?')
    t.type(b'\x04')
    assert t.end() == 0


def keeps_the_conversation_until_clear(state):
    question = 'What is the code of Max?'
    first = 'The code of Max is 5128. The river was very quiet. What is the code of Max?'
    t = Terminal(GREEDY, state)
    t.wait_for_prompt()
    answer = t.ask(first)
    assert '5128' in answer, answer
    second = t.ask(question)
    # The same conversation as one raw prompt: the kept state is the state of the whole text.
    turn = '<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n'
    said = answer.split('\n')[0]
    whole = run_once('--raw', '-p', turn % first + said + '<|im_end|>\n' + turn % question)
    assert second.split('\n')[0] == whole.rstrip('\n'), (second, whole)
    tokens = lambda text: int(re.search(r'context +(\d+) tokens', text)[1])
    assert tokens(t.ask('/stats')) > 60
    assert 'new conversation' in t.ask('/clear')
    assert tokens(t.ask('/stats')) == 0
    fresh = run_once('--no-think', '-p', question)
    assert t.ask(question).split('\n')[0] == fresh.rstrip('\n')
    assert fresh != whole, 'the two questions do not tell kept from cleared'
    assert 'no system text' in t.ask('/system')
    t.type('/system You know many codes.\r')
    asked = t.wait_for(rb'\[y/N\] ')
    assert '1 question and answer are lost' in asked, asked
    assert 'nothing was changed' in t.ask('no')
    assert 'no system text' in t.ask('/system')
    t.type('/system You know many codes.\r')
    t.wait_for(rb'\[y/N\] ')
    assert 'new conversation with this' in t.ask('y')
    assert t.ask('/system').split('\n')[0] == 'You know many codes.'
    assert tokens(t.ask('/stats')) == 0
    with_system = run_once('--no-think', '-p', question, '--system', 'You know many codes.')
    assert t.ask(question).split('\n')[0] == with_system.rstrip('\n')
    t.type('/quit\r')
    assert t.end() == 0


def commands_are_listed_and_suggested(state):
    t = Terminal(GREEDY, state)
    t.wait_for_prompt()
    text = t.ask('/help')
    for command in ('/help', '/clear', '/system', '/stats', '/quit'):
        assert command in text, (command, text)
    assert '/write [TEXT]' in text and 'Ctrl-Left' in text and ' // ' in text, text
    assert '/help' in t.ask('/nonsense')
    assert 'unknown command /hlep: did you mean /help?' in t.ask('/hlep')
    assert 'unknown command /systm: did you mean /system?' in t.ask('/systm x')
    t.type('/quit\r')
    assert t.end() == 0


def ctrl_c_stops_the_answer_and_not_the_program(state):
    t = Terminal(['--temp', '0', '--no-think', '--ignore-eos'], state)
    t.wait_for_prompt()
    t.type('Tell me a story about an owl.\r')
    t.wait_for(rb'Once upon')
    t.type(b'\x03')
    assert 'stopped' in t.wait_for_prompt()
    t.type('What is 47 + 38?\r')
    t.wait_for(rb'85')
    t.type(b'\x03')
    t.wait_for_prompt()
    t.type(b'\x03')
    assert '/quit' in t.wait_for_prompt()
    t.type(b'\x04')
    assert t.end() == 0


def many_words_end_the_program(state):
    for word in ('/exit', '/bye', '/q', '/quit'):
        t = Terminal(GREEDY, state)
        t.wait_for_prompt()
        for question in ('exit', 'quit', 'bye'):
            assert '/quit or Ctrl-D' in t.ask(question), question
        t.type(word + '\r')
        assert t.end() == 0, word


def a_dim_line_says_how_fast_an_answer_was(state):
    line = r'\x1b\[2m\[prompt \d+ tokens, [\d.e+]+ tok/s; answer \d+ tokens(, [\d.e+]+ tok/s)?\]\x1b\[0m\n'
    for flags, expected in (([], True), (['--no-speed'], False), (['--quiet'], False), (['--stats'], False)):
        t = Terminal([*GREEDY, *flags], state)
        t.wait_for_prompt()
        text = t.ask('What is 47 + 38?')
        assert text.startswith('85\n') and (re.search(line, text) is not None) == expected, (flags, text)
        t.type(b'\x04')
        assert t.end() == 0


def options_change_within_a_conversation(state):
    t = Terminal(GREEDY + ['-n', '40'], state)
    t.wait_for_prompt()
    story = 'Tell me a story about an owl.'
    first = t.ask(story).split('\n')[0]
    shown = t.ask('/set')
    for name, value in (('temp', '0'), ('top-k', '20'), ('dry-multiplier', '0'), ('predict', '40')):
        assert re.search(rf'(?m)^  {name} +{value}$', shown), (name, shown)
    assert 'temp is 4 from now on' in t.ask('/set parameter temp 4')
    for wrong, instead in (('/set system Be short.', '/system'), ('/set verbose', '/stats'),
                           ('/image x.png', '/image')):
        assert instead in t.ask(wrong), wrong
    assert '/clear' in t.ask('/?')
    t.ask('/set top_k=0')
    assert re.search(r'top-k +0\n', t.ask('/set'))
    assert t.ask('/retry').split('\n')[0] != first
    t.ask('/set temp 0')
    assert first in t.ask('/regen')
    for wrong, message in (('/set temp -1', '--temp is -1'), ('/set temp', 'which value'),
                           ('/set tmep 1', 'no option tmep'), ('/set model x', 'no option model'),
                           ('/set temp warm', 'expected a number')):
        assert message in t.ask(wrong), wrong
    assert re.search(r'temp +0\n', t.ask('/set')), 'a fault has changed something'
    t.ask('/set n 2')
    assert 'stopped at -n 2' in t.ask(story)
    assert re.search(r'(?m)^  dry-sequence-breakers +"\\n", ":", "\\"", "\*"$', t.ask('/set'))
    assert 'is none from now on' in t.ask('/set dry-sequence-breakers none')
    assert re.search(r'(?m)^  dry-sequence-breakers +none$', t.ask('/set'))
    t.ask(r'/set dry-sequence-breakers \t')
    assert re.search(r'(?m)^  dry-sequence-breakers +"\\t"$', t.ask('/set'))
    t.type('/quit\r')
    assert t.end() == 0


def a_random_seed_is_drawn_for_each_answer(state):
    t = Terminal(['--no-think', '-n', '12', '--temp', '4', '--top-k', '0', '--top-p', '1'], state)
    t.wait_for_prompt()

    def answers(seed, command):
        t.ask('/set seed ' + seed)
        t.ask('/clear')
        texts = [t.ask('Tell me a story about an owl.')]
        for _ in range(2):
            if command == '/clear':
                t.ask(command)
            texts.append(t.ask('Tell me a story about an owl.' if command == '/clear' else command))
        return [text.split('\n')[0] for text in texts]

    same = answers('5', '/clear')
    assert len(set(same)) == 1, same
    for command in ('/clear', '/retry'):
        drawn = answers('-1', command)
        assert len({same[0], *drawn}) == 4, (command, same, drawn)
        # The answers of a run do not follow from the seed before it.
        assert answers('5', '/clear') == same and answers('-1', command)[1:] != drawn[1:]
    t.type('/quit\r')
    assert t.end() == 0


def thinking_is_switched_within_a_conversation(state):
    t = Terminal(GREEDY + ['-n', '8'], state)
    t.wait_for_prompt()
    dim = '\x1b[2m'
    assert 'thinking: off' in t.ask('/think')
    assert not t.ask('What is 47 + 38?').startswith(dim)
    assert 'thinking: on' in t.ask('/think on')
    assert t.ask('What is 47 + 38?').startswith(dim)
    for word, means in (('/nothink', 'off'), ('/set think', 'on'), ('/set nothink', 'off'),
                        ('/no_think', 'off')):
        assert 'thinking: ' + means in t.ask(word), word
    assert 'thinking: low' in t.ask('/think low')
    assert 'thinking: max' in t.ask('/think max')
    assert 'expected on, off' in t.ask('/think much')
    assert 'thinking: off' in t.ask('/think off')
    assert not t.ask('What is 47 + 38?').startswith(dim)
    t.type('/quit\r')
    assert t.end() == 0


def a_stopped_answer_goes_on(state):
    question = 'Tell me a story about an owl.'
    whole = run_once('--no-think', '-n', '12', '-p', question).rstrip('\n')
    t = Terminal(GREEDY + ['-n', '4'], state)
    t.wait_for_prompt()
    assert 'no answer was stopped' in t.ask('/continue')
    parts = [t.ask(question), t.ask('/continue'), t.ask('/continue')]
    assert all('stopped at -n 4: /continue' in part for part in parts), parts
    assert ''.join(part.split('\n')[0] for part in parts) == whole, (parts, whole)
    assert whole in t.ask('/show')
    # What follows is as after the whole answer.
    after = t.ask('What is 47 + 38?').split('\n')[0]
    assert after == '85', after
    assert 'no answer was stopped' in t.ask('/continue')
    t.type('/quit\r')
    assert t.end() == 0


def a_file_goes_with_the_next_question(state):
    path = os.path.join(state, 'code.txt')
    with open(path, 'w') as f:
        f.write('The code of Max is 5128. The river was very quiet.\n\n')
    t = Terminal(GREEDY, state, HOME=state)
    t.wait_for_prompt()
    assert '50 bytes go with the next question' in t.ask('/read ~/code.txt')
    assert '5128' in t.ask('What is the code of Max?')
    assert re.search(r'\[1\] The code of Max is 5128. The river was very quiet.\n+What is the code', t.ask('/show'))
    assert '85' in t.ask('What is 47 + 38?')
    assert 'No such file' in t.ask('/read ' + path + '.no')
    assert 'which file' in t.ask('/read')
    with open(path, 'wb') as f:
        f.write(b'a\0b')
    assert 'NUL' in t.ask('/read ' + path)
    t.type('/quit\r')
    assert t.end() == 0


def a_file_goes_with_a_question_from_the_editor_and_stays_until_one_is_asked(state):
    path, editor = os.path.join(state, 'code.txt'), os.path.join(state, 'editor')
    with open(path, 'w') as f:
        f.write('The code of Max is 5128.')
    with open(editor, 'w') as f:
        f.write('#!/bin/sh\necho "What is the code of Max?" >"$1"\n')
    os.chmod(editor, 0o700)
    t = Terminal(GREEDY + ['-c', '90'], state, EDITOR=editor)
    t.wait_for_prompt()
    t.ask('/read ' + path)
    assert '(/undo goes back' in t.ask('0' * 70)
    assert '5128' in t.ask('/write')
    assert t.ask('/show').count('5128. ') <= 1
    t.ask('/undo')
    t.ask('Hello.')
    t.ask('/read ' + path)
    assert '5128' in t.ask('/edit')
    assert re.search(r'\[1\] The code of Max is 5128.\n+What is the code', t.ask('/show'))
    t.type('/quit\r')
    assert t.end() == 0


def keys_during_an_answer_are_kept_and_not_echoed(state):
    for ends in (b'', b'\x03'):
        # The line of speed has numbers of its own.
        t = Terminal(['--temp', '0', '--no-think', '--ignore-eos', '-n', '400', '--no-speed'], state)
        t.wait_for_prompt()
        t.type('Tell me a story about an owl.\r')
        t.wait_for(rb'Once upon')
        t.type(b'What is 47')
        t.wait_for(rb'\w+ \w+')
        t.type(b' + 38?' + ends)
        text = t.wait_for_prompt()
        assert '47' not in text and '^C' not in text, text
        t.wait_for(rb'What is 47 \+ 38\?')
        t.type('\r')
        t.wait_for(rb'85')
        # A signal gives the terminal back.
        os.kill(t.pid, signal.SIGTERM)
        assert t.end() == -signal.SIGTERM
        assert termios.tcgetattr(t.fd)[3] & (termios.ICANON | termios.ECHO) == termios.ICANON | termios.ECHO


def words_wrap_at_the_terminals_width(state):
    question = 'Tell me a story about an owl.'
    whole = run_once('--no-think', '-p', question).split()
    for columns in (30, 72):
        t = Terminal(GREEDY + ['--no-speed'], state)
        t.resize(columns)
        t.wait_for_prompt()
        t.type(question + '\r')
        text = t.wait_for(re.escape(whole[-1].encode()) + rb'\n')
        answer = text[text.index(whole[0]):].split('\n')[:-1]
        assert all(len(line) <= columns for line in answer) and len(answer) > 3, (columns, answer)
        assert ' '.join(answer).split() == whole, (answer, whole)
        t.wait_for_prompt()
        t.type(b'\x04')
        assert t.end() == 0


def an_answer_in_a_given_form_keeps_its_marks_and_lines(state):
    grammar = os.path.join(state, 'grammar')
    text = '# **a** `b` and many more words | c'
    with open(grammar, 'w') as f:
        f.write('root ::= "%s"\n' % text)
    for flags in ([], ['--color', 'always']):
        t = Terminal([*GREEDY, '--no-speed', '--grammar', grammar, *flags], state)
        t.resize(24)
        t.wait_for_prompt()
        assert t.ask('Hi.').startswith(text + '\n'), flags
        t.type(b'\x04')
        assert t.end() == 0


def deleting_a_session_asks(state):
    t = Terminal(GREEDY, state)
    t.wait_for_prompt()
    t.ask('What is 47 + 38?')
    t.ask('/save notes')
    for answer, there in (('n', True), ('', True), ('y', False)):
        t.type('/delete notes\r')
        assert 'Delete the session notes?' in t.wait_for(rb'\[y/N\] ')
        t.type(answer + '\r')
        t.wait_for_prompt()
        assert ('notes' in t.ask('/sessions')) == there, answer
    assert 'no session' in t.ask('/delete notes')
    t.type('/quit\r')
    assert t.end() == 0


def what_ends_the_program_leaves_the_terminal_as_it_was(state):
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        t = Terminal(GREEDY, state)
        t.wait_for_prompt()
        t.type('What is')
        t.wait_for(b'What is')
        os.kill(t.pid, number)
        assert t.end() == -number
        assert termios.tcgetattr(t.fd)[3] & (termios.ICANON | termios.ECHO) == termios.ICANON | termios.ECHO


def ctrl_c_before_the_prompt_reads_keys_is_not_lost(state):
    t = Terminal(GREEDY, state, **preloaded('late_shim'))
    t.wait_for_prompt()
    for _ in range(3):
        t.type(b'\x03')
        assert '/quit' in t.wait_for_prompt()
    # A Ctrl-C discards the keys before it, even those that the program is about to read.
    t.type(b'abc')
    t.wait_for(b'abc')
    t.type(b'\x03')
    t.wait_for_prompt()
    assert '85' in t.ask('What is 47 + 38?')
    t.type(b'\x04')
    assert t.end() == 0


def ctrl_c_stops_a_long_prompt_and_the_rest_is_read_later(state):
    system = 'The river was very quiet. Leo likes bread and honey. The mouse ate some berries. ' * 20
    # The reference is slow enough for a line about its progress.
    t = Terminal(GREEDY + ['--device', 'reference', '-c', '8192', '--chunk', '256', '--system', system],
                 state)
    t.wait_for_prompt()
    t.type('What is 16 + 55?\r')
    t.wait_for(rb'reading the prompt.*%')
    t.type(b'\x03')
    text = t.wait_for_prompt()
    assert 'stopped' in text and not re.search(r'(?m)^71\b', text), text
    assert '85' in t.ask('What is 47 + 38?')
    t.type(b'\x04')
    assert t.end() == 0


def blanks_at_the_end_do_not_count_and_other_words_do(state):
    t = Terminal(GREEDY, state)
    t.wait_for_prompt()
    assert 'nothing was asked yet' in t.ask('/edit ')
    assert 'saved as foo,' in t.ask('/save foo  ')
    assert 'nothing was asked in this session' in t.ask('/load foo ')
    t.ask('/set temp 0.25 ')
    t.ask('/set repeat-last-n -1')
    options = t.ask('/set')
    assert re.search('temp  *0.25\n', options) and re.search('repeat-last-n  *1048576\n', options), options
    t.ask('What is 47 + 38?')
    for command in ('/undo x', '/clear x', '/quit x', '/retry now'):
        assert command.split()[0] + ' takes nothing' in t.ask(command), command
    assert '47' in t.ask('/show')
    t.type('/quit \r')
    assert t.end() == 0


def flags_of_a_prompt_are_refused_without_one(state):
    for flags in (['--raw'], ['--json'], ['--json=full'], ['--logits', os.path.join(state, 'l')],
                  ['--hidden', os.path.join(state, 'h')]):
        t = Terminal(flags, state)
        t.wait_for(re.escape(flags[0].split('=')[0]).encode() + rb' goes with a prompt')
        assert t.end() == 2, flags


def a_full_context_is_one_line(state):
    ran = subprocess.run([PROGRAM, '-m', MODEL, *GREEDY, '-c', '60', '-p', 'Count from 1 to 100.', '--ignore-eos'],
                         capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert ran.returncode == 0 and ran.stderr.count('\n') == 1, ran
    assert 'context of 60 tokens' in ran.stderr and '(-c ' in ran.stderr, ran


def a_prompt_that_outgrows_the_context_is_reported_and_the_session_lives(state):
    t = Terminal(GREEDY + ['-c', '40'], state)
    t.wait_for_prompt()
    text = t.ask(' '.join('x' * 35))
    assert 'tokens' in text and '40' in text and '/clear' in text and '/undo' in text and '-c' in text, text
    assert '85' in t.ask('What is 47 + 38?')
    t.type(b'\x04')
    assert t.end() == 0


def history_outlives_the_program(state):
    t = Terminal(GREEDY, state)
    t.wait_for_prompt()
    t.ask('What is 47 + 38?')
    t.type('/quit\r')
    assert t.end() == 0
    path = os.path.join(state, 'moeflux', 'history')
    assert os.stat(path).st_mode & 0o077 == 0, 'others can read the history'
    t = Terminal(GREEDY, state)
    t.wait_for_prompt()
    t.type(b'\x1b[A')
    t.wait_for(rb'/quit')
    t.type(b'\x1b[A')
    t.wait_for(rb'47 \+ 38\?')
    t.type('\r')
    assert '85' in t.wait_for_prompt()
    t.type(b'\x04')
    assert t.end() == 0


def lines_that_end_in_a_backslash_go_on(state):
    t = Terminal(GREEDY, state)
    t.wait_for_prompt()
    t.type('What is \\\r')
    t.wait_for_prompt(PROMPT.replace(b'> ', rb'\. '))
    t.type('the capital of Iceland?\r')
    assert t.wait_for_prompt()
    t.type(b'\x04')
    assert t.end() == 0


def thinking_is_dim_on_a_terminal_that_can_show_it(state):
    arguments = ['--temp', '0', '-n', '12', '--ignore-eos', '-p', 'What is 47 + 38?']
    for environment, dim in (({}, True), ({'TERM': 'dumb'}, False), ({'NO_COLOR': '1'}, False)):
        t = Terminal(arguments, state, **environment)
        status = t.end()
        text = t.seen.decode()
        assert status == 0 and ('\x1b[2m' in text and '\x1b[0m' in text) == dim, (environment, status, text)
        assert dim or ('\x1b' not in text and text.startswith('<think>\n')), (environment, text)


def filtered(text):
    """Returns what src/text/printable.h makes of a valid text."""
    return re.sub('[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f]', '\ufffd', text.replace('\r\n', '\n'))


def control_characters_of_the_model_reach_a_pipe_and_no_terminal(state):
    n_controls = 0
    for seed in range(1, 4):
        arguments = ['--raw', '-p', 'Once', '-n', '150', '--ignore-eos', '--temp', '4', '--top-k', '0',
                     '--top-p', '1',
                     '-s', str(seed)]
        raw = subprocess.run([PROGRAM, '-m', MODEL, *arguments], capture_output=True, check=True,
                             stdin=subprocess.DEVNULL).stdout.decode()
        t = Terminal(arguments, state)
        assert t.end() == 0
        seen = re.sub(rb'[^\n]*\r\x1b\[K', b'', t.seen).decode()
        assert seen == filtered(raw), (seed, seen, raw)
        n_controls += raw != filtered(raw)
    assert n_controls > 1, 'the model has said no control characters'


def control_characters_of_file_names_reach_no_terminal(state):
    for name in ('x\x1b[31m', 'x\x9b31m', b'x\x9b31m', 'x\x07'):
        path = os.path.join(os.fsencode(state), os.fsencode(name))
        for arguments in (['-f', path], ['-p', 'x', '--logits', path + b'/y'], ['--batch', path]):
            t = Terminal(arguments, state)
            assert t.end() == 1
            assert re.fullmatch(rb'moeflux: [^\n]*No such file[^\n]*\n', t.seen), t.seen
            assert not re.search(rb'[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]', t.seen), t.seen
            assert t.seen.decode(), 'not UTF-8'


def control_characters_of_the_history_reach_no_terminal(state):
    os.makedirs(os.path.join(state, 'moeflux'))
    for text in ('pwned \\033]0;title\\007', 'pwned \\302\\23331m', 'pwned \\23331m'):
        with open(os.path.join(state, 'moeflux', 'history'), 'w') as f:
            f.write('_HiStOrY_V2_\n' + text.replace(' ', '\\040') + '\n')
        t = Terminal(GREEDY, state)
        t.wait_for_prompt()
        # The line of the history is drawn before the letter, since keys are handled in order.
        t.type(b'\x1b[AZ')
        seen = t.wait_for(b'Z')
        t.type(b'\x03')
        # The bell and the colours are the editor's own. It leaves out a line that is not UTF-8.
        seen += t.wait_for_prompt()
        assert '\x1b]' not in seen and '\x9b' not in seen, (text, seen)
        assert 'pwned' in seen or '\\233' in text and '\\302' not in text, (text, seen)
        t.type(b'\x04')
        assert t.end() == 0


def run_tests(*tests):
    """Runs each test in a directory of its own, prints cmocka's lines, and returns whether one failed."""
    n_failed = 0
    for test in tests:
        with tempfile.TemporaryDirectory() as folder:
            try:
                test(os.path.realpath(folder))
                print(f'[       OK ] {test.__name__}', flush=True)
            except Exception as fault:
                n_failed += 1
                print(f'    {test.__name__}: {type(fault).__name__}: {str(fault)[:1500]}')
                print(f'[  FAILED  ] {test.__name__}', flush=True)
    return n_failed > 0


def main():
    return run_tests(answers_turn_after_turn, keeps_the_conversation_until_clear,
                     commands_are_listed_and_suggested, ctrl_c_stops_the_answer_and_not_the_program,
                     many_words_end_the_program, a_dim_line_says_how_fast_an_answer_was,
                     options_change_within_a_conversation, thinking_is_switched_within_a_conversation,
                     a_random_seed_is_drawn_for_each_answer,
                     a_stopped_answer_goes_on, a_file_goes_with_the_next_question,
                     a_file_goes_with_a_question_from_the_editor_and_stays_until_one_is_asked,
                     keys_during_an_answer_are_kept_and_not_echoed, words_wrap_at_the_terminals_width,
                     an_answer_in_a_given_form_keeps_its_marks_and_lines,
                     deleting_a_session_asks, what_ends_the_program_leaves_the_terminal_as_it_was,
                     ctrl_c_before_the_prompt_reads_keys_is_not_lost,
                     ctrl_c_stops_a_long_prompt_and_the_rest_is_read_later,
                     blanks_at_the_end_do_not_count_and_other_words_do,
                     flags_of_a_prompt_are_refused_without_one, a_full_context_is_one_line,
                     a_prompt_that_outgrows_the_context_is_reported_and_the_session_lives,
                     history_outlives_the_program,
                     lines_that_end_in_a_backslash_go_on, thinking_is_dim_on_a_terminal_that_can_show_it,
                     control_characters_of_the_model_reach_a_pipe_and_no_terminal,
                     control_characters_of_file_names_reach_no_terminal,
                     control_characters_of_the_history_reach_no_terminal)


if __name__ == '__main__':
    sys.exit(main())
