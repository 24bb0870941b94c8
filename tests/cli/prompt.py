#!/usr/bin/python3
"""The line editor: keys, pasted texts, commands and questions. usage: prompt.py PROGRAM MODEL"""
import json, os, re, subprocess, sys

from terminal import GREEDY, MODEL, PROGRAM, PROMPT, Terminal, run_tests

CONTINUED = PROMPT.replace(b'> ', rb'\. ')
LEFT, RIGHT, UP, DOWN, HOME, END = '\x1b[D', '\x1b[C', '\x1b[A', '\x1b[B', '\x1b[H', '\x1b[F'
# Keys with an effect, typed after "/write one two", and the line that has an "X" typed after them.
EFFECTS = {
    'Home': (['\x1b[H', '\x1bOH', '\x1b[1~', '\x1b[7~', '\x01'], 'X/write one two'),
    'End': ([LEFT * 5 + end for end in ('\x1b[F', '\x1bOF', '\x1b[4~', '\x1b[8~', '\x05')],
            '/write one twoX'),
    'Left': (['\x1b[D', '\x1bOD', '\x02'], '/write one twXo'),
    'Right': ([LEFT * 2 + right for right in ('\x1b[C', '\x1bOC', '\x06')], '/write one twXo'),
    'Delete': ([LEFT + delete for delete in ('\x1b[3~', '\x04')], '/write one twX'),
    'Backspace': (['\x7f', '\x08'], '/write one twX'),
    'Ctrl-Left, Alt-Left, Alt-B': (['\x1b[1;5D', '\x1b[1;3D', '\x1b\x1b[D', '\x1bOd', '\x1b[5D', '\x1bb'],
                                   '/write one Xtwo'),
    'Ctrl-Right, Alt-Right, Alt-F': (['\x1bb' * 2 + word for word in (
        '\x1b[1;5C', '\x1b[1;3C', '\x1b\x1b[C', '\x1bOc', '\x1bf')], '/write oneX two'),
    'Ctrl-W, Alt-Backspace': (['\x17', '\x1b\x7f', '\x1b\x08'], '/write one X'),
    'Alt-D, Ctrl-Delete': (['\x1bb' + delete for delete in ('\x1bd', '\x1b[3;5~', '\x1b[3;3~', '\x1b[3^')],
                           '/write one X'),
    'Ctrl-K': ([LEFT * 4 + '\x0b'], '/write oneX'),
    'Ctrl-U, Ctrl-Y': (['\x15\x19'], '/write one twoX'),
    'Ctrl-T': (['\x14'], '/write one towX'),
    'Up, Down': (['\x1b[A\x1b[B', '\x10\x0e', '\x1bOA\x1bOB'], '/write one twoX'),
    'keypad': (['\x1bOp\x1bOy\x1bOk\x1bOn'], '/write one two09+.X'),
}
# Other keys of a usual keyboard have no effect.
NOTHING = {
    'F1 to F4': ['\x1bO' + c for c in 'PQRS'] + ['\x1b[1%d~' % i for i in range(1, 5)] +
                ['\x1b[[' + c for c in 'ABCDE'],
    'F5 to F12': ['\x1b[%d~' % i for i in (15, 17, 18, 19, 20, 21, 23, 24)],
    'F keys with modifiers': ['\x1b[1;%dP' % i for i in range(2, 9)] + ['\x1b[23$', '\x1b[24@'] +
                             ['\x1b[%d;%d~' % (k, i) for k in (15, 24) for i in range(2, 9)],
    'Insert': ['\x1b[2~', '\x1b[2;2~', '\x1b[2;5~'],
    'PgUp, PgDn': ['\x1b[5~', '\x1b[6~', '\x1b[5;2~', '\x1b[6;5~', '\x1b[5$'],
    'Shift and arrows': ['\x1b[1;2' + c for c in 'ABCD'] + ['\x1b[' + c for c in 'abcd'],
    'Shift, Ctrl and arrows': ['\x1b[1;%d%s' % (m, c) for m in (4, 6, 8) for c in 'ABCD'],
    'Ctrl or Alt, Up and Down': ['\x1b[1;%d%s' % (m, c) for m in (3, 5) for c in 'AB'] + ['\x1bOa', '\x1bOb'],
    'Home and End with modifiers': ['\x1b[1;%d%s' % (m, c) for m in range(2, 9) for c in 'HF'] +
                                   ['\x1b[7^', '\x1b[8$'],
    'Shift-Delete, Shift-Tab': ['\x1b[3;2~', '\x1b[Z'],
    'Alt and letters': ['\x1b' + c for c in 'aceghijklmnopqrstuvwxyzACEGZ0129.,;-=/<>#!'] +
                       ['\x1b\r', '\x1bé', '\x1b日'],
    'Tab and control keys': ['\t', '\0', '\x0f', '\x11', '\x13', '\x16', '\x18', '\x1d', '\x1e', '\x1f'],
    'keypad 5, Menu, Windows': ['\x1b[E', '\x1bOE', '\x1b[29~', '\x1b[34~'],
    'keys of newer protocols': ['\x1b[97;5u', '\x1b[27;5;97~', '\x1b[57358u', '\x1b[I', '\x1b[O'],
}


class Prompt(Terminal):
    """A conversation whose /write keeps its argument in a file and asks nothing."""

    def __init__(self, state, *arguments, **environment):
        self.shown = os.path.join(state, 'shown')
        editor = f'f() {{ cat "$1" >"{self.shown}"; : >"$1"; }}; f'
        super().__init__([*GREEDY, *arguments], state, VISUAL=editor, **environment)
        self.wait_for_prompt()

    def written(self):
        """Returns the argument of the last /write, without the line end that is added to it."""
        with open(self.shown) as f:
            return f.read()[:-1]

    def type_shown(self, text):
        """Types the text and waits until it is shown."""
        self.type(text)
        self.wait_for(re.escape(text.encode()))

    def quit(self):
        self.type('/quit\r')
        assert self.end() == 0


def every_key_of_a_keyboard_has_its_effect_or_none(state):
    t = Prompt(state)
    for name, (sequences, line) in EFFECTS.items():
        for sequence in sequences:
            t.type_shown('/write one two')
            # A line that is no command any more becomes the argument of one: it is cut and pasted.
            t.type(sequence + 'X')
            t.type('\x01\x0b\x19\r' if line[0] == '/' else '\x01\x0b/write \x19\r')
            t.wait_for_prompt()
            expected = line[len('/write '):] if line[0] == '/' else line
            assert t.written() == expected, (name, sequence, t.written())
    for name, sequences in NOTHING.items():
        for sequence in sequences:
            t.type_shown('/write one')
            t.type(sequence)
            # The next letter is drawn as usual.
            t.type('X')
            t.wait_for(rb'X')
            t.type('\r')
            t.wait_for_prompt()
            assert t.written() == 'oneX', (name, sequence, t.written())
    t.quit()


def unbound_keys_draw_nothing(state):
    t = Prompt(state)
    t.type_shown('/write one')
    t.type(''.join(sum(NOTHING.values(), [])) + 'X')
    drawn = t.wait_for(rb'X')
    assert drawn == 'X', drawn
    t.type('\r')
    t.wait_for_prompt()
    assert t.written() == 'oneX'
    t.quit()


def an_editrc_of_the_user_has_the_keys(state):
    path = os.path.join(state, 'editrc')
    with open(path, 'w') as f:
        f.write('bind "\\e[5~" ed-move-to-beg\n')
    t = Prompt(state, EDITRC=path)
    t.type_shown('write one')
    t.type('\x1b[5~/\r')
    t.wait_for_prompt()
    assert t.written() == 'one'
    t.type_shown('/write one')
    t.type('\x1b[200~ a\rb\x1b[201~\r')
    t.wait_for_prompt()
    assert t.written() == 'one a\nb'
    t.quit()


def pasted(text):
    return '\x1b[200~' + text.replace('\n', '\r') + '\x1b[201~'


def a_pasted_text_is_one_question(state):
    t = Prompt(state)
    t.type('/write ' + pasted('one\n  two\\\n\n/quit\nthree\n') + pasted('four'))
    t.wait_for(rb'four')
    t.type('\r')
    t.wait_for_prompt()
    assert t.written() == 'one\n  two\\\n\n/quit\nthree\nfour', t.written()
    # Line ends of other systems, letters beyond ASCII, and what could command the terminal.
    t.type('/write \x1b[200~a\r\nb\nc\té日\x1b]0;title\x07\x1b[201~\r')
    t.wait_for_prompt()
    assert t.written() == 'a\nb\nc\té日\ufffd]0;title\ufffd', t.written()
    # The history has it whole.
    t.type(UP)
    t.wait_for('é日'.encode())
    t.type('\r')
    t.wait_for_prompt()
    assert t.written() == 'a\nb\nc\té日\ufffd]0;title\ufffd', t.written()
    # A text may have more lines than the terminal.
    long = '\n'.join(f'line {i}' for i in range(300))
    t.type('/write ' + pasted(long))
    t.wait_for(rb'line 299')
    t.type('\r')
    t.wait_for_prompt()
    assert t.written() == long
    # Ctrl-C discards a pasted text, even one that has not ended.
    for given_up in (pasted('one\ntwo'), '\x1b[200~one\rtwo'):
        t.type('/write ' + given_up)
        t.wait_for(rb'/write ')
        t.type('\x03')
        t.wait_for_prompt()
    t.type('/write x\r')
    t.wait_for_prompt()
    assert t.written() == 'x'
    t.quit()


def a_pasted_text_is_asked_as_it_is(state):
    t = Prompt(state)
    t.type(pasted('The code of Max is 5128. The river was very quiet.\nWhat is the code of Max?\n') + '\r')
    assert '5128' in t.wait_for_prompt()
    t.ask('/save pasted')
    t.quit()
    with open(os.path.join(state, 'moeflux', 'sessions', 'pasted.json')) as f:
        turns = json.load(f)['turns']
    assert [turn['question'] for turn in turns] == \
        ['The code of Max is 5128. The river was very quiet.\nWhat is the code of Max?'], turns


def ctrl_d_discards_a_continued_question(state):
    t = Prompt(state)
    for typed in ('\x04', 'x\\\r'):
        t.type('What is \\\r')
        t.wait_for_prompt(CONTINUED)
        if typed[0] == 'x':
            t.type(typed)
            t.wait_for_prompt(CONTINUED)
            t.type('\x04')
        else:
            t.type(typed)
        t.wait_for_prompt()
    assert 'nothing was asked yet' in t.ask('/show')
    t.type('\x04')
    assert t.end() == 0


def a_question_may_begin_with_a_slash(state):
    t = Prompt(state, '-n', '2')
    t.ask(' /bin is a directory?')
    t.ask('//etc is one too?')
    shown = t.ask('/show')
    assert '[1] /bin is a directory?' in shown and '[2] /etc is one too?' in shown, shown
    # The history has the line as it was typed.
    t.type(UP * 3)
    t.wait_for(rb' /bin is a directory\?')
    t.type('\x15')
    assert 'put a blank before it' in t.ask('/zzzzzzzz')
    t.quit()


def several_lines_are_written_in_an_editor(state):
    t = Terminal([*GREEDY], state, VISUAL='f() { printf "What is\\n47 + 38?\\n" >"$1"; }; f')
    t.wait_for_prompt()
    assert '85' in t.ask('/write')
    assert '[1] What is\n47 + 38?' in t.ask('/show')
    t.type('\x04')
    assert t.end() == 0


def a_saved_conversation_is_not_lost_by_a_new_system_text(state):
    t = Prompt(state, '-n', '2')
    t.ask('/system Be brief.')
    t.ask('Hello')
    t.ask('/save s')
    assert 'new conversation without system text' in t.ask('/system -')
    assert 'no system text' in t.ask('/system')
    assert 'Hello' in t.ask('/load s')
    assert t.ask('/system').startswith('Be brief.')
    t.quit()


def an_answer_of_a_grammar_is_printed_as_it_is(state):
    text = '# Sum\nIt is **85**, see `sum.c`:\n```\n47 + 38\n```\n'
    grammar = os.path.join(state, 'grammar')
    with open(grammar, 'w') as f:
        f.write('root ::= ' + json.dumps(text))
    for environment, flags in (({}, []), ({'NO_COLOR': '1'}, []), ({'TERM': 'dumb'}, []),
                               ({}, ['--color', 'never']), ({}, ['--color', 'always'])):
        t = Terminal([*GREEDY, '-p', 'What is 47 + 38?', '--grammar', grammar, *flags], state, **environment)
        assert t.end() == 0
        seen = re.sub(rb'[^\n]*\r\x1b\[K', b'', t.seen).decode()
        assert seen == text, (environment, flags, seen)
    for flags in ([], ['--color', 'always']):
        piped = subprocess.run([PROGRAM, '-m', MODEL, *GREEDY, '-p', 'What is 47 + 38?', '--grammar', grammar,
                                *flags], check=True, capture_output=True, stdin=subprocess.DEVNULL)
        piped = piped.stdout.decode()
        assert piped == text, (flags, piped)
    t = Prompt(state, '--grammar', grammar)
    t.ask('What is 47 + 38?')
    t.ask('/save s')
    t.quit()
    with open(os.path.join(state, 'moeflux', 'sessions', 's.json')) as f:
        assert json.load(f)['turns'][0]['answer'] == text


def a_slow_evaluation_in_an_answer_leaves_its_line_alone(state):
    # The model has no tokens of several of these bytes: all are forced, printed, and then evaluated at once
    # before a token can be chosen. That takes seconds.
    text = '日' * 80
    grammar = os.path.join(state, 'grammar')
    with open(grammar, 'w') as f:
        f.write(f'root ::= [AB] "{text}" [CD]')
    slow = ['--grammar', grammar, '--device', 'reference', '--chunk', '16', '-c', '4096']
    t = Terminal([*GREEDY, *slow, '-p', 'What is 47 + 38?'], state)
    assert t.end() == 0
    assert re.search(rf'[AB]{text}[CD]\n'.encode(), t.seen), t.seen
    # Other work shows its progress again: the next question's is as slow.
    t = Prompt(state, *slow)
    t.type('What is 47 + 38?\r')
    t.wait_for(rf'[AB]{text}[CD]\n'.encode())
    t.wait_for_prompt()
    t.type('The river was very quiet. ' * 40 + '\r')
    t.wait_for(rb'reading the prompt.*%')
    t.type('\x03')
    t.wait_for_prompt()
    t.quit()


def main():
    return run_tests(every_key_of_a_keyboard_has_its_effect_or_none, unbound_keys_draw_nothing,
                     an_editrc_of_the_user_has_the_keys, a_pasted_text_is_one_question,
                     a_pasted_text_is_asked_as_it_is, ctrl_d_discards_a_continued_question,
                     a_question_may_begin_with_a_slash, several_lines_are_written_in_an_editor,
                     a_saved_conversation_is_not_lost_by_a_new_system_text,
                     an_answer_of_a_grammar_is_printed_as_it_is,
                     a_slow_evaluation_in_an_answer_leaves_its_line_alone)


if __name__ == '__main__':
    sys.exit(main())
