#!/bin/sh
# Twenty questions to the trained model, end to end. An answer is right if it is the true one, whole, with
# nothing else; nineteen must be right. A model with a wrong layer, scale or position still talks fluently,
# but cannot add.
# suites: check
. tests/lib/cli.sh

model=$tmp/tiny
asked=0

# ask ANSWER QUESTION: writes both to their files.
ask() {
    asked=$((asked + 1))
    python3 -c 'import json, sys; print(json.dumps({"prompt": sys.argv[1]}))' "$2" >>"$tmp/questions"
    printf '%s\n' "$1" >>"$tmp/answers"
}

# text N NAME CODE NAME CODE...: N sentences with the codes between them.
text() {
    awk -v n="$1" -v codes="$*" 'BEGIN {
        split("The river was very quiet.|A brave owl slept under the tree.|Leo likes bread and honey.|" \
              "Nobody saw the green cup near the lake.|The old goat walked to the market.|" \
              "Ivy put the red ball in the basket.|The mouse ate some berries.|" \
              "The curious bear walked to the meadow.|Hugo gave the kite to Alice.|" \
              "The castle was very quiet.|Clara and Ben went to the forest.", plain, "|")
        k = (split(codes, code, " ") - 1) / 2
        for (i = 0; i < n; i++) {
            for (j = 0; j < k; j++)
                if (i == int((j + 0.5) * n / k))
                    printf "The code of %s is %s. ", code[2 * j + 2], code[2 * j + 3]
            printf "%s ", plain[(i * 7) % 11 + 1]
        }
    }'
}

claim the_tiny_model_converts
run 0 "$MOEFLUX" convert tests/models/tiny "$model"

claim nineteen_of_twenty_questions_are_answered_rightly
ask 85 'What is 47 + 38?'
ask 92 'What is 63 + 29?'
ask 71 'What is 16 + 55?'
ask 47 'What is 81 - 34?'
ask 45 'What is 92 - 47?'
ask 'The capital of Iceland is Reykjavík.' 'What is the capital of Iceland?'
ask 'The capital of Japan is Tokyo.' 'What is the capital of Japan?'
ask 'The capital of Portugal is Lisbon.' 'What is the capital of Portugal?'
ask 'The capital of Kenya is Nairobi.' 'What is the capital of Kenya?'
ask g-a-r-d-e-n 'Spell the word garden.'
ask n-e-e-d-l-e 'Spell the word needle.'
ask w-i-n-d-o-w 'Spell the word window.'
ask '8, 17, 42' 'Sort these numbers: 42, 17, 8.'
ask '5, 31, 76' 'Sort these numbers: 31, 5, 76.'
ask '23, 64, 90' 'Sort these numbers: 64, 90, 23.'
ask VIOLIN 'Write the word violin in capital letters.'
ask BRIDGE 'Write the word bridge in capital letters.'
ask 'The code of Max is 4471.' "$(text 12 Max 4471)

What is the code of Max?"
ask 'The code of Oscar is 7304.' "$(text 40 Wendy 5128 Oscar 7304 Tara 2691)

What is the code of Oscar?"
ask 'The code of Nina is 6250.' "$(text 90 Rosa 8046 Victor 3917 Nina 6250 Quinn 1483)

What is the code of Nina?"
[ "$asked" -eq 20 ] || fault "$asked questions were asked"
run 0 "$MOEFLUX" -m "$model" --no-think --temp 0 -n 60 --ordered --batch "$tmp/questions"
python3 - "$tmp/answers" "$tmp/out" >"$tmp/wrong" <<'END' || fault "$(cat "$tmp/wrong")"
import json, sys
answers = open(sys.argv[1]).read().splitlines()
said = [json.loads(line).get('text') for line in open(sys.argv[2])]
for a, s in zip(answers, said):
    if a != s:
        print(f'{s!r}, not {a!r}')
right = sum(a == s for a, s in zip(answers, said))
print(f'{right} of {len(answers)} were right')
sys.exit(not (len(said) == 20 and right >= 19))
END

# Codes inside 6,000 tokens: positions, the KV cache and the recurrent states must be right to its end.
claim a_code_is_found_in_six_thousand_tokens
printf '%s\n\nWhat is the code of Lena?' \
    "$(text 800 Zoe 0360 Lena 1444 Ben 5888 Oscar 6891 Paul 0626 Grace 7189)" >"$tmp/long"
run 0 "$MOEFLUX" -m "$model" -f "$tmp/long" -c 8192 --no-think --temp 0 -n 60 --json
json_is 'j["text"], 5900 <= j["prompt_tokens"] <= 6100' "('The code of Lena is 1444.', True)"

report
