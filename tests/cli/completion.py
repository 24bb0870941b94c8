"""Types lines with tabs into a real shell, in which `moeflux` only prints its words, and compares what came
of them.

usage: completion.py bash|zsh|fish SCRIPT DIRECTORY [ROOT]
SCRIPT: -, the one that is installed where the shell looks. DIRECTORY: an empty one for the files that are
completed. ROOT: of
the system whose shell it is, which has DIRECTORY."""
import os
import pty
import re
import select
import sys
import time

shell, script, where = sys.argv[1:4]
root = sys.argv[4] if len(sys.argv) > 4 else ""

# What is typed, and the words that moeflux then gets.
CASES = [
    ("moeflux --kv-type f3\t", "--kv-type f32"),
    ("moeflux --kv-type=f3\t", "--kv-type=f32"),
    ("moeflux --no-th\t", "--no-think"),
    ("moeflux --cache-policy fr\t", "--cache-policy frequency"),
    ("moeflux --device ref\t", "--device reference"),
    ("moeflux conv\t", "convert"),
    ("moeflux convert --rec\tmixed_3\t", "convert --recipe mixed_3_"),
    ("moeflux serve --api-k\tke\t", "serve --api-key-file keys.txt"),
    ("moeflux serve --ctx\t4", "serve --ctx-size 4"),
    ("moeflux -m mod\t", "-m models/"),
    ("moeflux -m ke\t", "-m ke"),
    ("moeflux -f ke\t", "-f keys.txt"),
    ("moeflux inspect mod\t", "inspect models/"),
    ("moeflux inspect --no-m\t", "inspect --no-measure"),
]

START = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "PS1='% '; bind 'set enable-bracketed-paste off'; "),
    "zsh": (["zsh", "-f", "-i"],
            "PS1='%% '; autoload -Uz compinit; compinit -u -D; unsetopt always_last_prompt; "),
    "fish": (["fish", "--no-config", "-i"], "function fish_prompt; echo -n '% '; end; "),
}
SAYS = {
    "bash": "moeflux() { printf 'GOT<%s>\\n' \"$*\"; }; ",
    "zsh": "moeflux() { print -r -- \"GOT<$*>\" }; ",
    "fish": "function moeflux; echo \"GOT<$argv>\"; end; ",
}


def read_until(fd, pattern, seconds):
    text, end = "", time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([fd], [], [], 0.2)[0]:
            try:
                text += os.read(fd, 65536).decode(errors="replace")
            except OSError:
                break
            found = re.search(pattern, text)
            if found:
                return found.group(1), text
    return None, text


os.makedirs(os.path.join(where, "models"))
open(os.path.join(where, "keys.txt"), "w").close()
argv, start = START[shell]
if shell == "fish" and script == "-":
    argv = ["fish", "-i"]  # without its configuration it does not look where packages put theirs
load = f"source {script}" if script != "-" else "source /usr/share/bash-completion/bash_completion" if shell == "bash" else "true"
pid, fd = pty.fork()
if pid == 0:
    if root:
        os.chroot(root)
    os.chdir("/" + os.path.relpath(where, root) if root else where)
    os.environ.update(TERM="dumb" if shell != "fish" else "xterm", HOME=os.getcwd(),
                      PATH="/usr/local/bin:/usr/bin:/bin", LC_ALL="C.UTF-8")
    os.execvp(argv[0], argv)
os.write(fd, f"{start}{SAYS[shell]}{load}; moeflux re''ady\n".encode())
ready, said = read_until(fd, "GOT<(ready)>", 60)
bad = [] if ready else [f"the shell did not start: {said[-400:]!r}"]
for typed, wanted in CASES if ready else []:
    os.write(fd, (typed + "\n").encode())
    got, said = read_until(fd, r"GOT<([^>]*)>", 60)
    # zsh writes --flag=value for the same, and takes the slash of a directory away where the word ends.
    same = [re.sub(r"^(--[a-z-]+)=", r"\1 ", re.sub(r" (--[a-z-]+)=", r" \1 ", w)).rstrip(" /")
            for w in (got or "", wanted)]
    if got is None or same[0] != same[1]:
        bad.append(f"{typed!r}: moeflux got {got!r}, expected {wanted!r}; the shell: {said[-300:]!r}")
os.write(fd, b"exit\n")
read_until(fd, r"(\x00)", 1)
os.close(fd)
os.waitpid(pid, 0)
print("\n".join(bad), end="\n" if bad else "")
sys.exit(bool(bad))
