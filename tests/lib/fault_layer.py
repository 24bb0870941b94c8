"""Programs on a Vulkan device that fails as a test wants (tests/lib/vulkan_layer.c)."""
import json, os, re, subprocess, urllib.error, urllib.request


class Layer:
    """What the layer reads and writes in a folder. The device computes nothing if is_empty."""

    def __init__(self, program, folder, is_empty=True):
        self.program = program
        self.fault, self.log = os.path.join(folder, 'fault'), os.path.join(folder, 'log')
        self.environment = {**os.environ, 'VK_LAYER_PATH': os.path.join(os.path.dirname(program), 'tests'),
                            'VK_INSTANCE_LAYERS': 'VK_LAYER_MOEFLUX_test', 'MOEFLUX_VK_FAULT': self.fault,
                            'MOEFLUX_VK_LOG': self.log}
        if is_empty:
            self.environment['MOEFLUX_VK_EMPTY'] = '1'

    def set(self, fault, then=None):
        """Sets the fault, and the one that replaces it when a loss has happened."""
        if then:
            self.write(self.fault + '.next', then)
        self.write(self.fault, fault)

    @staticmethod
    def write(path, text):
        with open(path + '.new', 'w') as f:
            f.write(text)
        os.rename(path + '.new', path)

    def clear(self):
        for path in (self.fault, self.fault + '.next', self.log):
            if os.path.exists(path):
                os.remove(path)

    def log_line(self):
        """Returns the numbers that the layer wrote when the last device was closed."""
        with open(self.log) as f:
            return [int(n) for n in f.read().splitlines()[-1].split()]

    def counts(self):
        """Returns the numbers of submissions, allocations and objects that were not freed."""
        return self.log_line()[:3]


class Server:
    """`moeflux serve` on the device of a layer."""

    def __init__(self, layer, *flags, model='tests/models/tiny', device='0'):
        layer.clear()
        self.process = subprocess.Popen(
            [layer.program, 'serve', '-m', model, '--device', device, '-c', '512', '--temp', '0', '--no-think',
             '--port', '0', *flags], env=layer.environment, stderr=subprocess.PIPE, text=True)
        self.url = re.search(r'listening on (\S+)', self.line())[1]

    def __enter__(self):
        return self

    def __exit__(self, *why):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def line(self):
        return self.process.stderr.readline()

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {'Content-Type': 'application/json'})
        return urllib.request.urlopen(request, timeout=300)

    def ask(self, text, n=4):
        """Returns the status, and the answer or the error's text, and the number of cached tokens."""
        body = {'messages': [{'role': 'user', 'content': text}], 'max_tokens': n, 'ignore_eos': True}
        try:
            with self.post('/v1/chat/completions', body) as reply:
                j = json.load(reply)
                return (reply.status, j['choices'][0]['message']['content'],
                        j['usage']['prompt_tokens_details']['cached_tokens'])
        except urllib.error.HTTPError as e:
            with e:
                return e.code, json.load(e)['error']['message'], 0

    def get(self, path):
        try:
            with urllib.request.urlopen(self.url + path, timeout=300) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as e:
            with e:
                return e.code, e.read().decode()

    def metric(self, name):
        return int(re.search(rf'^moeflux_{name} (\d+)', self.get('/metrics')[1], re.M)[1])

    def end(self):
        self.process.terminate()
        assert self.process.wait(300) == 0
        return self.process.stderr.read()

    def ends_by_itself(self):
        """Returns the lines of its end with status 1."""
        assert self.process.wait(300) == 1
        return self.process.stderr.read().splitlines()


def run_claims(claims):
    """Runs each claim, prints cmocka's lines, and returns whether one failed."""
    n_failed = 0
    for claim in claims:
        try:
            claim()
            print(f'[       OK ] {claim.__name__}', flush=True)
        except Exception as fault:
            n_failed += 1
            print(f'    {claim.__name__}: {type(fault).__name__}: {str(fault)[:1500]}')
            print(f'[  FAILED  ] {claim.__name__}', flush=True)
    return n_failed > 0
