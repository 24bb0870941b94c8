#!/bin/sh
# The library as `make install` leaves it: its headers, its symbols, and a program that uses only these.
# suites: check fast
. tests/lib/cli.sh

# Another tree's program would be made again from this tree's sources.
case $MOEFLUX in
"$PWD"/*) ;;
*)
    echo "SKIP library: $MOEFLUX is not in this tree"
    exit 0
    ;;
esac
build=$(dirname "$MOEFLUX")
# The path that make was called with: the files of dependencies have it.
build=${build#"$PWD"/}
headers="src/moeflux.h src/moeflux_chat.h"
root=$tmp/root
strict='-Wall -Wextra -Wpedantic -Werror'
text='The capital of Iceland is'

# compiles COMPILER...: in a directory that has only the headers.
mkdir "$tmp/alone"
# shellcheck disable=SC2086 # words are words
cp $headers "$tmp/alone"
compiles() {
    # shellcheck disable=SC2086 # words are words
    (cd "$tmp/alone" && "$@" $strict -fsyntax-only) >"$tmp/out" 2>&1 || fault "$*: $(head -n 3 "$tmp/out")"
}

claim the_headers_compile_alone_as_c11_and_as_cpp
cat >"$tmp/alone/use.c" <<'END'
#include "moeflux.h"
#include "moeflux.h"
int main(void) { struct moeflux_options o = {0}; return (int)o.chunk; }
END
cat >"$tmp/alone/use.cpp" <<'END'
#include "moeflux.h"
int main() { moeflux_options o = {}; return moeflux_model_open(nullptr, &o, nullptr); }
END
compiles cc -std=c11 use.c
compiles c++ -std=c++11 use.cpp
sed -i 's/moeflux\.h/moeflux_chat.h/' "$tmp/alone/use.c" "$tmp/alone/use.cpp"
compiles cc -std=c11 use.c
compiles c++ -std=c++11 use.cpp
! grep -n '#include "' src/moeflux.h || fault "the header includes files of the project"
[ "$(grep -h '#include "' src/moeflux_chat.h)" = '#include "moeflux.h"' ] ||
    fault "the header of chats includes other files of the project than moeflux.h"

claim everything_the_headers_declare_has_their_prefix
cc -std=c11 -E -P src/moeflux_chat.h | grep -v '^typedef\|^#' >"$tmp/header"
# The tags of structs and enums, and the enumerators, without those of standard headers.
sed -n '/enum moeflux_err_code/,$p' "$tmp/header" >"$tmp/ours"
grep -oE '\b(struct|enum|union) [a-z_0-9]+' "$tmp/ours" | sort -u | grep -v ' moeflux_' >"$tmp/bad"
grep -oE '\b[A-Z][A-Z_0-9]+\b' "$tmp/ours" | sort -u | grep -v '^MOEFLUX_' >>"$tmp/bad"
[ ! -s "$tmp/bad" ] || fault "without the prefix: $(tr '\n' ',' <"$tmp/bad")"

claim install_puts_everything_in_its_place
# It does not inherit the flags of a make that runs this test. Modes do not depend on the umask.
(umask 0 && env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -s BUILD="$build" DESTDIR="$root" PREFIX=/usr \
    install >"$tmp/out" 2>&1) ||
    fault "make install: $(tail -n 3 "$tmp/out")"
set -- share/bash-completion/completions/moeflux share/zsh/site-functions/_moeflux \
    share/fish/vendor_completions.d/moeflux.fish
set -- "$@" bin/moeflux include/moeflux.h include/moeflux_chat.h lib/libmoeflux.a lib/libmoeflux.so.0 \
    lib/libmoeflux.so lib/pkgconfig/moeflux.pc
writable=$(find "$root/usr/lib/pkgconfig" -perm -002)
[ -z "$writable" ] || fault "everybody may write $writable"
for page in man/*; do
    set -- "$@" "share/man/man${page##*.}/${page#man/}"
done
for file; do
    [ -f "$root/usr/$file" ] || fault "$file is missing"
done
[ "$(find "$root" ! -type d | wc -l)" -eq $# ] ||
    fault "more files than expected: $(find "$root" ! -type d | tr '\n' ' ')"
LC_ALL=C readelf -d "$root/usr/lib/libmoeflux.so" | grep -q 'soname: \[libmoeflux.so.0\]' ||
    fault "the soname is another"
export PKG_CONFIG_PATH="$root/usr/lib/pkgconfig"
[ "moeflux $(pkg-config --modversion moeflux)" = "$("$MOEFLUX" --version)" ] ||
    fault "moeflux.pc has another version"

claim the_libraries_export_what_the_headers_declare_and_nothing_else
grep -oE '\bmoeflux_[a-z_0-9]+\(' "$tmp/ours" | tr -d '(' | sort -u >"$tmp/declared"
[ "$(wc -l <"$tmp/declared")" -gt 40 ] ||
    fault "only $(wc -l <"$tmp/declared") functions were found in the headers"
nm -D --defined-only "$root/usr/lib/libmoeflux.so" | awk 'NF == 3 { print $3 }' | sort >"$tmp/shared"
nm -g --defined-only "$root/usr/lib/libmoeflux.a" | awk 'NF == 3 { print $3 }' | sort >"$tmp/static"
for kind in shared static; do
    cmp -s "$tmp/declared" "$tmp/$kind" ||
        fault "$kind: $(diff "$tmp/declared" "$tmp/$kind" | grep '^[<>]' | head -n 5 | tr '\n' ' ')"
done

# packages FLAG...: what pkg-config prints for the tree under $root.
packages() \
    { pkg-config --define-variable=prefix="$root/usr" --define-variable=libdir="$root/usr/lib" "$@" moeflux; }

# answers EXAMPLE: its answer is the program's, with the same model, text and sampling.
answers() {
    run 0 env LD_LIBRARY_PATH="$root/usr/lib" "$1" tests/models/tiny "$text"
    [ "$(cat "$tmp/out")" = "$expected" ] ||
        fault "the example says '$(cat "$tmp/out")', the program '$expected'"
    err_empty
}
run 0 "$MOEFLUX" -m tests/models/tiny --raw --temp 0 --frequency-penalty 0.5 -n 24 -p "$text"
expected=$(cat "$tmp/out")

claim a_program_of_sixty_lines_uses_the_shared_library
# shellcheck disable=SC2046,SC2086 # words are words
cc -std=c11 $strict -o "$tmp/shared-example" examples/generate.c $(packages --cflags --libs) >"$tmp/out" \
    2>&1 ||
    fault "cc: $(head -n 3 "$tmp/out")"
[ -n "$expected" ] || fault 'the program says nothing'
LC_ALL=C readelf -d "$tmp/shared-example" | grep -q 'NEEDED.*\[libmoeflux.so.0\]' ||
    fault 'the example lacks the library'
answers "$tmp/shared-example"

claim the_same_program_links_the_static_library
# shellcheck disable=SC2046,SC2086 # words are words
cc -std=c11 $strict -o "$tmp/static-example" examples/generate.c \
    $(packages --static --cflags --libs | sed 's/-lmoeflux/-l:libmoeflux.a/') >"$tmp/out" 2>&1 ||
    fault "cc: $(head -n 3 "$tmp/out")"
! LC_ALL=C readelf -d "$tmp/static-example" | grep -q 'NEEDED.*libmoeflux' ||
    fault 'the example needs the shared library'
answers "$tmp/static-example"

# converses COMMAND...: answers two questions, the first as the program does; the answers are left in $tmp/out.
ask='Tell me something about Iceland.'
run 0 "$MOEFLUX" -m tests/models/tiny --seed 5 -p "$ask"
first=$(cat "$tmp/out")
converses() {
    printf '%s\n' "$ask" 'What is 47 + 38?' >"$tmp/questions"
    LD_LIBRARY_PATH="$root/usr/lib" "$@" tests/models/tiny "${MOEFLUX_DEVICE:-cpu}" 5 <"$tmp/questions" \
        >"$tmp/out" 2>"$tmp/err" || fault "$*: $(head -n 3 "$tmp/err")"
    [ "$(head -n 1 "$tmp/out")" = "$first" ] ||
        fault "the example says '$(head -n 1 "$tmp/out")', the program '$first'"
    [ "$(wc -l <"$tmp/out")" -eq 2 ] || fault "expected two answers: $(cat "$tmp/out")"
    err_empty
}

claim a_conversation_in_sixty_lines_of_c_gives_the_answers_of_the_program
[ "$(wc -l <examples/chat.c)" -le 60 ] || fault 'examples/chat.c has more than 60 lines'
# shellcheck disable=SC2046,SC2086 # words are words
cc -std=c11 $strict -o "$tmp/chat" examples/chat.c $(packages --cflags --libs) >"$tmp/out" 2>&1 ||
    fault "cc: $(head -n 3 "$tmp/out")"
[ -n "$first" ] || fault 'the program says nothing'
converses "$tmp/chat"
cp "$tmp/out" "$tmp/conversation"

claim the_same_conversation_through_ctypes
converses python3 examples/chat.py
cmp -s "$tmp/out" "$tmp/conversation" || fault 'the two examples differ'

claim many_answers_at_once_in_sixty_lines_of_c_are_those_of_the_program
[ "$(wc -l <examples/pool.c)" -le 60 ] || fault 'examples/pool.c has more than 60 lines'
# shellcheck disable=SC2046,SC2086 # words are words
cc -std=c11 $strict -o "$tmp/pool" examples/pool.c $(packages --cflags --libs) >"$tmp/out" 2>&1 ||
    fault "cc: $(head -n 3 "$tmp/out")"
converses "$tmp/pool"

claim the_second_answer_is_that_of_a_batch_line_with_these_messages
run 0 "$MOEFLUX" -m tests/models/tiny --seed 5 --json -p "$ask"
answered='{"role": "assistant", "content": j["text"], "reasoning_content": j["thinking"]}'
asked='[{"role": "user", "content": t} for t in open("'$tmp'/questions").read().split("\n")]'
evaluate "(lambda q: json.dumps({'seed': 5, 'messages': [q[0], $answered, q[1]]}))($asked)"
printf '%s\n' "$value" >"$tmp/lines"
run 0 "$MOEFLUX" -m tests/models/tiny --batch "$tmp/lines"
json_is 'j["text"]' "$(sed -n 2p "$tmp/conversation")"

# A negative temperature stands for 0: the answer does not depend on the seed.
claim a_gguf_files_sampling_reaches_the_library
python3 -I -S - tests/models/gguf/qwen3moe_even.gguf "$tmp/greedy.gguf" <<'END'
import struct, sys
data = open(sys.argv[1], 'rb').read()
n_tensors, n_values = struct.unpack_from('<QQ', data, 8)
key = b'general.sampling.temp'
value = struct.pack('<Q', len(key)) + key + struct.pack('<If', 6, -1.0)
# The tensors' bytes are aligned to 32: another value fills up.
fill = b'x.fill'
value += struct.pack('<Q', len(fill)) + fill + struct.pack('<IQ', 8, 0)
pad = -len(value) % 32
value = value[:-8] + struct.pack('<Q', pad) + b'x' * pad
open(sys.argv[2], 'wb').write(data[:8] + struct.pack('<QQ', n_tensors, n_values + 2) + value + data[24:])
END
# Its context is smaller.
sed "s/4096/512/" examples/chat.py >"$tmp/chat.py"
for seed in 1 2; do
    echo 'hello the' | LD_LIBRARY_PATH="$root/usr/lib" python3 "$tmp/chat.py" "$tmp/greedy.gguf" cpu $seed \
        >"$tmp/seed.$seed" 2>"$tmp/err" || fault "chat.py: $(head -n 3 "$tmp/err")"
done
[ -s "$tmp/seed.1" ] || fault 'the library says nothing'
cmp -s "$tmp/seed.1" "$tmp/seed.2" || fault 'seeds differ at temperature 0'

claim no_question_is_cut_or_left_out
long=$(head -c 70000 /dev/zero | tr '\0' x)
for example in chat pool; do
    status=0
    echo "$long" | LD_LIBRARY_PATH="$root/usr/lib" "$tmp/$example" tests/models/tiny cpu 1 >"$tmp/out" 2>"$tmp/err" ||
        status=$?
    [ $status -eq 1 ] || fault "$example: status $status"
    grep -q "^$example: .*line .*bytes$" "$tmp/err" || fault "$example: $(cat "$tmp/err")"
    out_empty
done
status=0
yes 'What is 2 + 3?' | head -n 257 | LD_LIBRARY_PATH="$root/usr/lib" "$tmp/pool" tests/models/tiny cpu 1 \
    >"$tmp/out" 2>"$tmp/err" || status=$?
[ $status -eq 1 ] || fault "pool: status $status"
grep -q '^pool: more than 256 lines' "$tmp/err" || fault "pool: $(cat "$tmp/err")"
printf '\377 what is 2 + 3?\n' | LD_LIBRARY_PATH="$root/usr/lib" LC_ALL=C python3 examples/chat.py tests/models/tiny \
    cpu 1 >"$tmp/out" 2>"$tmp/err" || fault "chat.py: $(cat "$tmp/err")"
[ -s "$tmp/out" ] || fault 'chat.py says nothing'

claim an_example_prints_the_message_of_the_library
run 1 "$tmp/static-example" "$tmp/no-such-dir" x
err_has "$tmp/no-such-dir: No such file"
run 1 "$tmp/static-example" tests/models/qwen-odd/mlx x reference
err_has 'tokenizer'
export LD_LIBRARY_PATH="$root/usr/lib"
run 1 "$tmp/chat" "$tmp/no-such-dir"
err_has "$tmp/no-such-dir: No such file"
run 1 "$tmp/chat" tests/models/tiny cpu seven
err_has 'seed: '
report
