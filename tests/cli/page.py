"""The chat page in a headless Chromium, driven by its chromedriver. For tests/cli/page.sh.

usage: page.py MODEL [DIRECTORY]    DIRECTORY: screenshots go there; chat-page.png is that of docs/"""
import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import sys

from waiting import wait_until

model, pictures = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


class Server:
    def __init__(self):
        self.port = free_port()
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [os.environ['MOEFLUX'], 'serve', '-m', model, '--device', 'cpu', '--port', str(self.port), '-c', '512'],
            stderr=subprocess.PIPE, text=True)
        assert 'listening on' in self.process.stderr.readline()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate()


class Browser:
    """A session of the WebDriver protocol."""

    def __init__(self):
        self.port = free_port()
        self.process = subprocess.Popen(['chromedriver', f'--port={self.port}'], stdout=subprocess.DEVNULL)
        wait_until(self.is_ready, 'chromedriver listens')
        self.session = ''
        options = {'args': ['--headless=new', '--no-sandbox', '--disable-gpu', '--window-size=1100,800']}
        made = self.do('POST', '/session', {'capabilities': {'alwaysMatch': {
            'browserName': 'chrome', 'goog:chromeOptions': options, 'goog:loggingPrefs': {'browser': 'ALL'}}}})
        self.session = '/session/' + made['sessionId']

    def is_ready(self):
        try:
            return self.do('GET', '/status')['ready']
        except OSError:
            return False

    def do(self, method, path, body=None):
        c = http.client.HTTPConnection('127.0.0.1', self.port, timeout=120)
        c.request(method, path, json.dumps(body) if body is not None else None)
        reply = json.loads(c.getresponse().read())['value']
        if isinstance(reply, dict) and 'error' in reply:
            raise AssertionError(reply['error'] + ': ' + reply['message'])
        return reply

    def open(self, url):
        self.do('POST', self.session + '/url', {'url': url})

    def run(self, script, *args):
        return self.do('POST', self.session + '/execute/sync', {'script': script, 'args': list(args)})

    def keys(self, text):
        actions = [{'type': t, 'value': c} for c in text for t in ('keyDown', 'keyUp')]
        self.do('POST', self.session + '/actions', {'actions': [{'type': 'key', 'id': 'k', 'actions': actions}]})

    def answer_alert(self):
        self.do('POST', self.session + '/alert/accept', {})

    def size(self, width, height):
        self.do('POST', self.session + '/window/rect', {'width': width, 'height': height})

    def picture(self, name):
        if pictures:
            with open(f'{pictures}/{name}.png', 'wb') as f:
                f.write(base64.b64decode(self.do('GET', self.session + '/screenshot')))

    def errors(self):
        entries = self.do('POST', self.session + '/se/log', {'type': 'browser'})
        severe = [x['message'] for x in entries if x['level'] == 'SEVERE']
        return [x for x in severe if 'Failed to load resource' not in x]

    def stop(self):
        self.do('DELETE', self.session)
        self.process.terminate()
        self.process.wait()


server, browser = Server(), Browser()
ENTER, ESCAPE = '\ue007', '\ue00c'


def reload():
    browser.open(f'http://127.0.0.1:{server.port}/')
    wait_until(lambda: browser.run('return document.readyState === "complete" && Boolean(model)'), 'the page is there')


def status():
    return browser.run('return document.getElementById("status").textContent')


def answers():
    return browser.run('return [...document.querySelectorAll(".answer .said")].map(x => x.textContent)')


def titles():
    return browser.run('return [...document.querySelectorAll("#list .title")].map(x => x.textContent)')


def press(text, within='#log'):
    """Clicks the last button with a text."""
    found = browser.run('const b = [...document.querySelectorAll(arguments[0] + " button")]'
                        '.filter(b => b.textContent === arguments[1] || b.ariaLabel === arguments[1]).at(-1);'
                        'if (b) setTimeout(() => b.click()); return Boolean(b)', within, text)
    assert found, text


def ask(text, ends='Answered.'):
    browser.run('ask.value = ""; ask.focus()')
    browser.keys(text + ENTER)
    wait_until(lambda: status() == ends, f'{ends!r} is shown')


def html(text):
    return browser.run('const d = document.createElement("div"); readBlocks(arguments[0].split("\\n"), d);'
                       'return d.innerHTML.replace(/ (style|xmlns|stretchy|aria-label|rel|target|type)="[^"]*"/g, "")', text)


def markdown_becomes_nodes():
    cases = {
        '# A *b*': '<h1>A <em>b</em></h1>',
        'a **b** _c_ `d*` ~~e~~': '<p>a <strong>b</strong> <em>c</em> <code>d*</code> <del>e</del></p>',
        '***x*** snake_case_name 2*3*4': '<p><strong><em>x</em></strong> snake_case_name 2<em>3</em>4</p>',
        'line\nline': '<p>line<br>line</p>',
        '- a\n- b\n  - c\n\n1. d': '<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><ol start="1"><li>d</li></ol>',
        '- [x] done': '<ul><li><input disabled=""> done</li></ul>',
        '> q\n> r': '<blockquote><p>q<br>r</p></blockquote>',
        '| a | b |\n|---|:-:|\n| `x|y` | 2 |': '<div class="scroll"><table><thead><tr><th>a</th><th>b</th></tr></thead>'
                                            '<tbody><tr><td><code>x|y</code></td><td>2</td></tr></tbody></table></div>',
        '```c\nint <x>;\n```': '<div class="code" data-language="c"><pre><code>int &lt;x&gt;;</code></pre>'
                              '<button>Copy</button></div>',
        '[t](https://a.example/x_(y) "z")': '<p><a href="https://a.example/x_(y)">t</a></p>',
        'see https://a.example/b.': '<p>see <a href="https://a.example/b">https://a.example/b</a>.</p>',
        '[x](javascript:alert(1))': '<p>[x](javascript:alert(1))</p>',
        '<img src=x onerror=alert(1)> &lt;b&gt; &#65;': '<p>&lt;img src=x onerror=alert(1)&gt; &lt;b&gt; A</p>',
        '![p](https://a.example/p.png)': '<p><a href="https://a.example/p.png">p</a></p>',
        r'\*no\* $5 and $6': '<p>*no* $5 and $6</p>',
        r'$x^2$': '<p><math><mrow><msup><mi>x</mi><mn>2</mn></msup></mrow></math></p>',
        r'\(\alpha_{i}\)': '<p><math><mrow><msub><mi>α</mi><mrow><mi>i</mi></mrow></msub></mrow></math></p>',
        '$$\n\\frac{1}{2}\n$$': '<math display="block"><mrow><mfrac><mrow><mn>1</mn></mrow><mrow><mn>2</mn></mrow></mfrac>'
                                '</mrow></math>',
        r'\[\unknown\]': r'<pre>\unknown</pre>',
        r'$\mathbb{R}$': '<p><math><mrow><mrow><mi>ℝ</mi></mrow></mrow></math></p>',
    }
    for text, want in cases.items():
        got = html(text)
        assert got == want, f'{text!r}\n  is   {got}\n  want {want}'


def a_text_that_grows_is_shown_as_when_it_is_whole():
    text = ('# T\n\nOne *two* three.\n\n- a\n- b\n\n  c\n- d\n\n```py\nx = 1\n\ny = 2\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n'
            '$$\nx\n\ny\n$$\nEnd\n===\n> q\n\nlast')
    same = browser.run('''const grown = document.createElement("div"), view = new MarkdownView(grown);
        const text = arguments[0];
        for (let i = 0; i <= text.length; i++) {
            const whole = document.createElement("div");
            view.update(text.slice(0, i));
            readBlocks(text.slice(0, i).split("\\n"), whole);
            if (grown.innerHTML !== whole.innerHTML)
                return text.slice(0, i) + "\\n" + grown.innerHTML + "\\n" + whole.innerHTML;
        }
        return "";''', text)
    assert same == '', same


def formulas_of_every_kind_are_drawn():
    for text in (r'\sum_{i=0}^{n} i = \frac{n(n+1)}{2}', r'\begin{pmatrix} a & b \\ c & d \end{pmatrix}',
                 r'f(x) = \begin{cases} 1 & x > 0 \\ 0 & \text{else} \end{cases}', r'\sqrt[3]{x}, \hat{y}, \vec v, \bar{z}',
                 r'\left( \frac{a}{b} \right]', r"f''(x) \to \infty", r'\lim_{x \to 0} \sin x',
                 r'\mathcal{L}(\theta) \in \mathbb{R}^n',
                 r'\begin{aligned} a &= b \\ &= c \end{aligned}', r'\int_0^1 x\,dx', r'\binom{n}{k}', r'a \not= b', r'\|x\|_2'):
        assert browser.run('return mathNode(arguments[0], true).tagName.toLowerCase()', text) == 'math', text
    # What is wrong is shown as it is.
    for text in (r'\frac{1}', r'{a', r'\begin{matrix} a', '}', r'\left(', '^' * 500 + '{' * 500):
        assert browser.run('return mathNode(arguments[0], true).tagName.toLowerCase()', text) == 'pre', text


def a_question_is_answered_and_kept():
    reload()
    ask('What is 12 + 30?')
    assert answers() == ['42'], answers()
    assert 'of 512 tokens' in browser.run('return document.getElementById("context").textContent')
    assert browser.run('return document.querySelector(".thinking summary").textContent').startswith('Thought for')
    assert 'tokens/s' in browser.run('return document.querySelector(".answer .note").textContent')
    browser.picture('answer')
    reload()
    assert titles() == ['What is 12 + 30?'], titles()
    press('What is 12 + 30?', '#list')
    assert answers() == ['42'], answers()


def answers_are_edited_made_again_and_continued():
    press('Edit')
    browser.run('document.querySelector(".edit").value = "What is 20 + 21?"')
    press('Send again')
    wait_until(lambda: status() == 'Answered.' and answers() == ['41'], 'the other question is answered')
    press('Regenerate')
    wait_until(lambda: status() == 'Answered.' and answers() == ['41'], 'the same answer comes again')
    browser.run('keep("effort", "none"); keep("most", "1")')
    ask('What is 22 + 33?')
    short = answers()[-1]
    browser.run('keep("most", "")')
    press('Continue')
    wait_until(lambda: status() == 'Answered.', 'the answer goes on')
    assert answers()[-1] == '55' and short != '55', (short, answers())
    browser.run('keep("effort", "")')


def conversations_are_searched_renamed_and_deleted():
    press('New chat', '#side')
    ask('What is 1 + 1?')
    assert len(titles()) == 2, titles()
    browser.run('const s = document.getElementById("search"); s.value = "22 + 33"; s.dispatchEvent(new Event("input"))')
    assert titles() == ['What is 20 + 21?'], titles()
    browser.run('const s = document.getElementById("search"); s.value = ""; s.dispatchEvent(new Event("input"))')
    press('Rename What is 1 + 1?', '#list')
    browser.run('document.querySelector("#list input").value = ""')
    browser.keys('Sums' + ENTER)
    wait_until(lambda: 'Sums' in titles(), 'the new name is shown')
    exported = browser.run('return JSON.stringify({conversations: all})')
    assert browser.run('return readExport(arguments[0]).map(c => c.title)', exported) == titles()
    browser.picture('list')
    press('Delete Sums', '#list')
    browser.answer_alert()
    wait_until(lambda: titles() == ['What is 20 + 21?'], 'it is gone')


def escape_stops_and_a_draft_is_kept():
    press('New chat', '#side')
    browser.run('keep("most", "400"); keep("temperature", "2")')
    browser.run('ask.value = ""; ask.focus()')
    browser.keys('Tell me of the river' + ENTER + ESCAPE)
    wait_until(lambda: status() == 'Stopped.', 'it is stopped')
    browser.run('keep("most", ""); keep("temperature", ""); ask.focus()')
    browser.keys('half a question')
    reload()
    assert browser.run('return ask.value') == 'half a question'
    browser.run('ask.value = ""; keep("draft", "")')


def a_deleted_conversation_stays_away_while_it_is_answered():
    press('New chat', '#side')
    browser.run('keep("most", "400"); keep("temperature", "2"); ask.value = ""; ask.focus()')
    browser.keys('Tell me of the forest' + ENTER)
    wait_until(lambda: 'Tell me of the forest' in titles(), 'it is in the list')
    press('Delete Tell me of the forest', '#list')
    browser.answer_alert()
    wait_until(lambda: browser.run('return running === null'), 'the answer has ended')
    assert 'Tell me of the forest' not in titles(), titles()
    browser.run('keep("most", ""); keep("temperature", "")')
    reload()
    assert 'Tell me of the forest' not in titles(), titles()


def nothing_is_lost_when_the_server_is_down():
    press('New chat', '#side')
    server.stop()
    browser.run('ask.value = ""; ask.focus()')
    browser.keys('What is 3 + 4?' + ENTER)
    wait_until(lambda: 'cannot be reached' in status(), 'the error is shown')
    server.start()
    press('Retry')
    wait_until(lambda: status() == 'Answered.', 'it is answered after all')
    assert answers() == ['7'], answers()


def a_dropped_file_is_part_of_the_question():
    press('New chat', '#side')
    browser.run('return addFiles([new File(["x = 1\\n"], "a.py"), new File([new Uint8Array([0, 255])], "b.bin")])')
    assert 'b.bin' in status(), status()
    ask('What is 2 + 2?')
    assert browser.run('return shown.messages[0].content') == 'File a.py:\n```\nx = 1\n```\n\nWhat is 2 + 2?'


def it_fits_a_phone_and_has_labels_and_contrast():
    browser.size(390, 800)
    reload()
    assert browser.run('return document.documentElement.scrollWidth <= innerWidth')
    assert browser.run('return getComputedStyle(document.getElementById("side")).display') == 'none'
    press('Show the list of conversations', 'header')
    browser.picture('phone')
    press('Hide the list', '#side')
    nameless = browser.run('return [...document.querySelectorAll("button, input, textarea, select")].filter(e => !e.hidden &&'
                           '!(e.ariaLabel || e.textContent.trim() || e.labels && e.labels.length)).map(e => e.outerHTML)')
    assert nameless == [], nameless
    low = browser.run('''const curve = x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
        const channel = c => curve(c / 255);
        const light = rgb => { const [r, g, b] = rgb.match(/[\\d.]+/g).map(Number);
            return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b); };
        const ground = light(getComputedStyle(document.body).backgroundColor), out = [];
        for (const name of ["note", "error", "thinking"]) {
            const e = node("p", name, "x"); document.getElementById("log").append(e);
            const own = light(getComputedStyle(e).color), [a, b] = [Math.max(own, ground), Math.min(own, ground)];
            if ((a + 0.05) / (b + 0.05) < 4.5) out.push(name + " " + (a + 0.05) / (b + 0.05));
            e.remove();
        }
        return out;''')
    assert low == [], low


def picture_for_the_documents():
    """A conversation that was not computed, to show what the page draws."""
    answer = ('The sum of the first $n$ whole numbers is\n\n$$\\sum_{i=1}^{n} i = \\frac{n(n+1)}{2}$$\n\n'
              '```c\nuint64_t sum(uint64_t n) { return n * (n + 1) / 2; }\n```\n\n'
              '| n | sum |\n|--:|--:|\n| 10 | 55 |\n| 100 | **5,050** |')
    browser.run('shown.messages = [{role: "user", content: "What is 1 + 2 + ... + n, and how do I write it in C?"},'
                '{role: "assistant", content: arguments[0], thinking: "x", think_ms: 2400, end: "stop", n_context: 214,'
                'note: "196 tokens, 41.7 tokens/s; first after 0.3 s, 18 of 18 tokens of the prompt computed"}];'
                'shown.title = shown.messages[0].content; all.unshift(shown); show(shown); log.scrollTop = 0', answer)
    browser.picture('chat-page')
    browser.run('all.shift(); show(newConversation())')


reload()
if pictures:
    picture_for_the_documents()
failed = 0
for claim in (markdown_becomes_nodes, a_text_that_grows_is_shown_as_when_it_is_whole, formulas_of_every_kind_are_drawn,
              a_question_is_answered_and_kept, answers_are_edited_made_again_and_continued,
              conversations_are_searched_renamed_and_deleted, escape_stops_and_a_draft_is_kept,
              a_deleted_conversation_stays_away_while_it_is_answered,
              nothing_is_lost_when_the_server_is_down, a_dropped_file_is_part_of_the_question,
              it_fits_a_phone_and_has_labels_and_contrast):
    try:
        claim()
        assert browser.errors() == [], 'the console has errors'
        print('ok ' + claim.__name__)
    except AssertionError as e:
        failed += 1
        browser.picture(claim.__name__)
        print(f'FAIL {claim.__name__}: {e}')
browser.stop()
server.stop()
sys.exit(failed != 0)
