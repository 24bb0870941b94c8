"""A server for the Python tests: starts `moeflux serve` with a program and model, and ends it."""
import json
import re
import select
import subprocess
import urllib.request


class Server:
    def __init__(self, program, model, *flags):
        self.process = subprocess.Popen([program, 'serve', '-m', model, '--port', '0', *flags],
                                        stderr=subprocess.PIPE, text=True)
        # Its first line comes when it listens.
        assert select.select([self.process.stderr], [], [], 60)[0], 'no server within a minute'
        self.url = re.search(r'listening on (\S+)', self.process.stderr.readline())[1]

    def complete(self, **body):
        """Returns the reply to a completion, to be read."""
        request = urllib.request.Request(self.url + '/v1/completions', json.dumps(body).encode(),
                                         {'Content-Type': 'application/json'})
        return urllib.request.urlopen(request, timeout=300)

    def end(self):
        self.process.terminate()
        assert self.process.wait(60) == 0, self.process.stderr.read()
