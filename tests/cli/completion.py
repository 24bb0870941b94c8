"""Types lines with tabs into a real shell, in which `moeflux` only prints its arguments, and compares these.

usage: completion.py bash|zsh|fish SCRIPT DIRECTORY [ROOT]
  SCRIPT     -: the installed one
  DIRECTORY  empty, for the files that are completed
  ROOT       the root of the shell's system, above DIRECTORY"""
import os
import pty
import re
import select
import sys
import time

shell, script, where = sys.argv[1:4]
root = sys.argv[4] if len(sys.argv) > 4 else ""

# What is typed, and the arguments that moeflux gets.
CASES = [
    ("moeflux --kv-type f3\t", "--kv-type f32"),
    ("moeflux --kv-type=f3\t", "--kv-type=f32"),
    ("moeflux --no-th\t", "--no-think"),
    ("moeflux --cache-policy fr\t", "--cache-policy frequency"),
    ("moeflux --device ref\t", "--device reference"),
    ("moeflux conv\t", "convert"),
    ("moeflux compl\tba\t", "completion bash"),
    ("moeflux completion zs\t", "completion zsh"),
    ("moeflux hel\tser\t", "help serve"),
    ("moeflux benc\tmod\t", "bench models/"),
    ("moeflux run -m mod\t", "run -m models/"),
    ("moeflux run --no-th\t", "run --no-think"),
    ("moeflux convert --rec\tmixed_3\t", "convert --recipe mixed_3_"),
    ("moeflux serve --api-key-f\tke\t", "serve --api-key-file keys.txt"),
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
    # The scripts of packages are found by fish's configuration.
    argv = ["fish", "-i"]
load = f"source {script}" if script != "-" else "true"
if shell == "bash" and script == "-":
    load = "source /usr/share/bash-completion/bash_completion"
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
    # zsh writes --flag=value, and removes the slash of a directory at the end of a word.
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
