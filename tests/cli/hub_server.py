#!/usr/bin/env python3
"""A server with Hugging Face's interface, and the faults of networks. usage: hub_server.py ROOT CONTROL LOG

ROOT/ORG/NAME has the files of a repository. Large ones (safetensors, gguf, bin) are those of LFS: the first port
redirects to a second one, which stands for another host. CONTROL is a JSON file that is read again for each request:

  cut        probability that a body is cut at a random byte (seed: of the random numbers)
  drop       probability that a connection is closed without a reply
  statuses   [[status, seconds of Retry-After, a text of RateLimit, or null], ...]: the next replies for files
  api        the same for lists of files; code: their X-Error-Code
  sizes      {name: size}: what the list says
  sums       {name: digest}: what the list says
  corrupt    [name]: one byte of it is wrong
  extra      [item]: more files in the list
  no_ranges  whole files only
  expire     the second port refuses an address after so many requests
  chunked    bodies without Content-Length
  slow       seconds between two pieces of 64 KiB of a body
  token      the token that lists and files need
  loop       files redirect to themselves
  endless    the bodies of errors and redirects have no end
  range      bytes by which the ranges are shifted
  total      bytes that ranges say the file has

LOG gets a line for each request: port index, path, Range, If-Range, Authorization, the
client's port. The two ports are printed."""
import hashlib
import http.server
import json
import os
import random
import socketserver
import sys
import threading
import time
import urllib.parse

root, control_path, log_path = sys.argv[1:]
lock = threading.Lock()
state = {"seed": None, "random": random.Random(0), "used": {}, "places": {}, "n": 0}
sums = {}
LARGE = (".safetensors", ".gguf", ".bin")


def control():
    with lock:
        try:
            with open(control_path) as file:
                text = file.read()
            now = json.loads(text or "{}")
        except (FileNotFoundError, ValueError):
            return {}
        if state.get("text") != text:
            state.update(text=text, used={}, random=random.Random(now.get("seed", 0)))
        return now


def chance():
    with lock:
        return state["random"].random()


def next_of(key, items):
    """The next item of a list that is used up, or None."""
    with lock:
        i = state["used"].get(key, 0)
        state["used"][key] = i + 1
    return items[i] if i < len(items) else None


def digest(path):
    key = path, os.path.getsize(path), os.path.getmtime(path)
    if key not in sums:
        with open(path, "rb") as file:
            data = file.read()
        git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        sums[key] = hashlib.sha256(data).hexdigest(), git
    return sums[key]


def files_of(name):
    top = os.path.join(root, name)
    for where, dirs, names in sorted(os.walk(top)):
        dirs.sort()
        for file in sorted(names):
            path = os.path.join(where, file)
            yield os.path.relpath(path, top), path


def commit_of(name):
    text = "".join(f"{file} {digest(path)[1]}\n" for file, path in files_of(name))
    return hashlib.sha1(text.encode()).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def log_line(self):
        with lock, open(log_path, "a") as file:
            file.write(f"{self.server.index} {self.path} {self.headers.get('Range', '-')} "
                       f"{self.headers.get('If-Range', '-')} {self.headers.get('Authorization', '-')} "
                       f"{self.client_address[1]}\n")

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), str(value))
        endless = control().get("endless") and status >= 300
        self.send_header("Content-Length", str(1 << 50 if endless else len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        while endless:
            self.wfile.write(bytes(1 << 16))

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.log_line()
        now = control()
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        try:
            if self.server.index == 1:
                self.place(now, path)
            elif path.startswith("/api/models/"):
                self.api(now, path)
            else:
                self.resolve(now, path)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def planned(self, key, now):
        """Sends the next planned status; returns whether there was one."""
        planned = next_of(key, now.get(key, []))
        if planned is None or planned[0] == 200:
            return False
        name = "RateLimit" if isinstance(planned[1], str) else "Retry_After"
        headers = {name: planned[1]} if planned[1] is not None else {}
        if "code" in now:
            headers["X_Error_Code"] = now["code"]
        self.reply(planned[0], b"no", **headers)
        return True

    def refused(self, now):
        if "token" in now and self.headers.get("Authorization") != f"Bearer {now['token']}":
            self.reply(401, b"", X_Error_Code="GatedRepo", X_Error_Message="Access is restricted.")
            return True
        return False

    def api(self, now, path):
        org, name, *rest = path[len("/api/models/"):].split("/")
        full = f"{org}/{name}"
        if self.planned("api", now) or self.refused(now):
            return
        if not os.path.isdir(os.path.join(root, full)):
            self.reply(404, b"{}", X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
            return
        commit = commit_of(full)
        if rest[:1] == ["revision"] and rest[1] not in ("main", "v1", commit) and rest[1:] != ["refs", "pr", "1"]:
            self.reply(404, b"{}", X_Error_Code="RevisionNotFound", X_Error_Message="Invalid rev id")
            return
        items = []
        for file, place in files_of(full):
            sha, git = digest(place)
            size = now.get("sizes", {}).get(file, os.path.getsize(place))
            item = {"rfilename": file, "size": size, "blobId": git}
            if file.endswith(LARGE):
                item["lfs"] = {"sha256": now.get("sums", {}).get(file, sha), "size": size, "pointerSize": 134}
            items.append(item)
        said = {"gguf": now["gguf"]} if "gguf" in now else {}
        body = json.dumps({**said, "id": full, "sha": commit, "siblings": items + now.get("extra", []),
                           "private": False, "gated": False, "disabled": False, "downloads": 0, "likes": 0, "tags": []})
        self.reply(200, body.encode(), Content_Type="application/json")

    def resolve(self, now, path):
        org, name, _, commit, *rest = path.strip("/").split("/")
        file = "/".join(rest)
        place = os.path.join(root, org, name, file)
        if self.planned("statuses", now) or self.refused(now):
            return
        if now.get("drop", 0) > chance():
            self.close_connection = True
            return
        if not os.path.isfile(place):
            self.reply(404, b"", X_Error_Code="EntryNotFound")
            return
        sha, git = digest(place)
        head = {"X_Repo_Commit": commit_of(f"{org}/{name}")}
        if now.get("loop"):
            self.reply(302, b"", Location=self.path, **head)
        elif file.endswith(LARGE):
            with lock:
                state["n"] += 1
                key = str(state["n"])
                state["places"][key] = [place, file, 0]
            self.reply(302, b"", Location=f"http://127.0.0.1:{ports[1]}/place/{key}?signature=a%2Bb", **head,
                       X_Linked_Size=os.path.getsize(place), X_Linked_Etag=f'"{sha}"', ETag=f'"{sha}"')
        else:
            self.send_file(now, place, file, git, head)

    def place(self, now, path):
        key = path.split("/")[2]
        with lock:
            place, file, used = state["places"][key]
            state["places"][key][2] += 1
        if used >= now.get("expire", 1 << 60):
            self.reply(403, b"expired")
        elif not self.planned("statuses", now):
            # The tag of a store of objects is another one than the repository's.
            self.send_file(now, place, file, digest(place)[1] + "-3", {})

    def send_file(self, now, place, file, tag, headers):
        size = os.path.getsize(place)
        begin, end, status = 0, size, 200
        wanted = self.headers.get("Range")
        if wanted and not now.get("no_ranges") and self.headers.get("If-Range", f'"{tag}"') == f'"{tag}"':
            first, last = wanted.removeprefix("bytes=").split("-")
            begin, end, status = int(first), min(size, int(last) + 1 if last else size), 206
            if begin >= size > 0:
                self.reply(416, b"", Content_Range=f"bytes */{size}")
                return
        with open(place, "rb") as source:
            source.seek(begin)
            body = source.read(end - begin)
        at = size // 2 - begin
        if file in now.get("corrupt", []) and 0 <= at < len(body):
            body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1:]
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), str(value))
        self.send_header("ETag", f'"{tag}"')
        if status == 206:
            begin += now.get("range", 0)
            total = now.get("total", size)
            self.send_header("Content-Range", f"bytes {begin}-{begin + len(body) - 1}/{total}")
        if now.get("chunked"):
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if now.get("cut", 0) > chance():
            body = body[:int(chance() * len(body))]
            self.close_connection = True
        if "slow" not in now:
            self.wfile.write(body)
            return
        for i in range(0, len(body), 1 << 16):
            self.wfile.write(body[i:i + (1 << 16)])
            time.sleep(now["slow"])


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128


servers = [Server(("127.0.0.1", 0), Handler) for _ in range(2)]
ports = [server.server_address[1] for server in servers]
for i, server in enumerate(servers):
    server.index = i
threading.Thread(target=servers[1].serve_forever, daemon=True).start()
print(*ports, flush=True)
servers[0].serve_forever()
