#!/bin/sh
# Answers that fit a schema or a grammar, with the embedded model on the CPU.
# suites: nightly asan-nightly
# shellcheck disable=SC2016 # texts of Python
. tests/lib/cli.sh

model=$tmp/tiny
run 0 "$MOEFLUX" convert tests/models/tiny "$model"
set -- -m "$model" --device cpu --no-think

claim documents_of_varied_schemas_are_valid
n=${MOEFLUX_ROUNDS:-206}
cat >"$tmp/make.py" <<'END'
import json, random, sys
random.seed(11)

def leaf():
    n = random.randrange(3)
    return random.choice([
        {'type': 'string', 'maxLength': random.randrange(2, 7)},
        {'type': 'string', 'minLength': 2, 'maxLength': 4},
        {'type': 'string', 'pattern': r'^[a-z]{1,5}-\d{2}$'},
        {'type': 'string', 'format': random.choice(['date', 'time', 'date', 'date-time', 'uuid'])},
        {'type': 'integer', 'minimum': -n * 17, 'maximum': 10 ** n + 5},
        {'type': 'number', 'exclusiveMinimum': 0, 'maximum': 7},
        {'type': 'boolean'}, {'type': 'null'}, {'const': {'k': [1, 'two']}},
        {'enum': ['red', 'green', 4, None]},
        {'anyOf': [{'type': 'integer', 'minimum': 3, 'maximum': 5}, {'type': 'boolean'}]}])

def schema(depth):
    if depth == 0:
        return leaf()
    kind = random.randrange(3)
    if kind == 0:
        return {'type': 'array', 'items': schema(depth - 1), 'minItems': random.randrange(2), 'maxItems': 2}
    if kind == 1:
        return {'type': 'array', 'prefixItems': [leaf(), schema(depth - 1)], 'minItems': 1}
    names = random.sample(['id', 'name', 'tag', 'size', 'note', 'on'], random.randrange(1, 3))
    properties = {n: schema(depth - 1) for n in names}
    return {'type': 'object', 'properties': properties, 'additionalProperties': False,
            'required': random.sample(names, random.randrange(len(names) + 1))}

tree = {'type': 'object', 'required': ['v', 'next'], 'additionalProperties': False,
        'properties': {'v': {'type': 'integer', 'minimum': 0, 'maximum': 9},
                       'next': {'anyOf': [{'type': 'null'}, {'$ref': '#'}]}}}
for i in range(int(sys.argv[1])):
    print(json.dumps({'id': i, 'prompt': 'Answer in JSON.',
                      'json_schema': tree if i % 20 == 0 else schema(i % 3), 'seed': i,
                      'n': 120, 'temp': 1.5, 'top_k': 0, 'top_p': 1}))
END
cat >"$tmp/check.py" <<'END'
import datetime, json, re, sys, uuid

def fits(v, s, root):
    if '$ref' in s:
        return fits(v, root, root)
    if 'anyOf' in s:
        return any(fits(v, x, root) for x in s['anyOf'])
    if 'const' in s or 'enum' in s:
        return json.dumps(v) in [json.dumps(x) for x in s.get('enum', [s.get('const')])]
    t = s['type']
    if t == 'null':
        return v is None
    if t == 'boolean':
        return isinstance(v, bool)
    if t in ('integer', 'number'):
        return (isinstance(v, int if t == 'integer' else (int, float)) and not isinstance(v, bool)
                and s.get('minimum', v) <= v <= s.get('maximum', v) and v > s.get('exclusiveMinimum', v - 1))
    if t == 'string':
        if not isinstance(v, str) or not s.get('minLength', 0) <= len(v) <= s.get('maxLength', len(v)):
            return False
        if 'pattern' in s and not re.search(s['pattern'], v):
            return False
        parse = {'date': datetime.date.fromisoformat, 'uuid': uuid.UUID,
                 'time': lambda x: re.fullmatch(r'\d\d:\d\d:\d\d(\.\d+)?(Z|[-+]\d\d:\d\d)', x).group(),
                 'date-time': lambda x: (datetime.date.fromisoformat(x[:10]), 'T' == x[10] or 1 / 0)}
        if 'format' in s:
            parse[s['format']](v)
        return True
    if t == 'array':
        first = s.get('prefixItems', [])
        most = s.get('maxItems', len(v)) if 'items' in s else len(first)
        forms = first + [s.get('items')] * (len(v) - len(first))
        return (isinstance(v, list) and s.get('minItems', 0) <= len(v) <= most
                and all(fits(x, y, root) for x, y in zip(v, forms)))
    return (isinstance(v, dict) and set(s.get('required', [])) <= set(v) <= set(s['properties'])
            and all(fits(x, s['properties'][k], root) for k, x in v.items()))

asked = {r['id']: r['json_schema'] for r in map(json.loads, open(sys.argv[1]))}
ended, cut = 0, 0
for r in map(json.loads, open(sys.argv[2])):
    if r['stop_reason'] == 'length':
        cut += 1
        continue
    ended += 1
    v, s = json.loads(r['text']), asked[r['id']]
    assert fits(v, s, s), (r['text'], s)
print(ended, 'whole and valid,', cut, 'cut')
sys.exit(cut > 6 or ended + cut != len(asked))
END
python3 "$tmp/make.py" "$n" >"$tmp/in"
run 0 "$MOEFLUX" "$@" --batch "$tmp/in" -o "$tmp/results"
python3 "$tmp/check.py" "$tmp/in" "$tmp/results" >"$tmp/checked" 2>&1 || fault "$(tail -n 3 "$tmp/checked")"

claim an_answer_of_a_grammar_fits_it_whatever_the_seed
printf 'root ::= "<" [a-z]{2,6} (", " [a-z]{2,6}){2} ">\\n"\n' >"$tmp/g"
for seed in 1 2 3; do
    run 0 "$MOEFLUX" "$@" -p 'Name three colours.' --grammar "$tmp/g" -s $seed --temp 2 --top-k 0
    out_has '^<[a-z]\{2,6\}, [a-z]\{2,6\}, [a-z]\{2,6\}>$'
done

claim the_grammar_begins_where_the_thinking_ends
run 0 "$MOEFLUX" -m "$model" --device cpu --think -p 'What is 3+4?' -n 200 -s 1 --json-schema \
    '{"enum":["yes","no"]}' --json
json_is 'len(j["thinking"]) > 10, json.loads(j["text"]) in ("yes", "no"), j["stop_reason"]' \
    "(True, True, 'eos')"

claim a_json_object_of_the_command_line_holds_for_lines_without_a_grammar
printf '%s\n' '{"prompt": "x", "n": 3, "seed": 1}' \
    '{"prompt": "x", "grammar": "root ::= \"ok\"", "seed": 1}' \
    '{"prompt": "x", "grammar": "root ::= b", "seed": 1}' '{"prompt": "x", "json_schema": {"not": {}}}' \
    '{"prompt": "x", "json_object": true, "grammar": "root ::= \"a\""}' '{"prompt": "x", "json_object": 1}' \
    '{"prompt": "x", "json_object": true, "ignore_eos": true}' >"$tmp/in"
run 1 "$MOEFLUX" "$@" --json-object --ordered --batch "$tmp/in"
json_is 'r[0]["text"][0], r[0]["stop_reason"], r[1]["text"], r[1]["stop_reason"]' \
    "('{', 'length', 'ok', 'eos')"
# error_has LINE PATTERN: the result of this line.
error_has() {
    sed -n "$1p" "$tmp/out" | grep -q "\"error\": \"line $1: $2" ||
        fault "$(sed -n "$1p" "$tmp/out"), expected $2"
}
error_has 3 'grammar: line 1, column 10: .*b\\"'
error_has 4 'json_schema: #/\\"not\\": '
error_has 5 'grammar and json_object exclude each other'
error_has 6 'json_object'
error_has 7 'ignore_eos .*grammar '

claim errors_of_a_schema_or_a_grammar_are_reported_before_the_model_is_loaded
printf 'root ::= "a\n' >"$tmp/g"
printf '{"type": "object", "properties": {"a": {"uniqueItems": true}}}' >"$tmp/schema"
fails 2 "^moeflux: .*$tmp/g: line 1, column 10: " -m /nowhere -p x --grammar "$tmp/g"
fails 2 "^moeflux: .*$tmp/schema: #/properties/a/uniqueItems: " -m /nowhere -p x --json-schema "$tmp/schema"
fails 2 '^moeflux: --json-schema: #/type: .*string' -m /nowhere -p x --json-schema ' {"type":"text"}'
fails 1 "^moeflux: .*$tmp/none: No such file" -m /nowhere -p x --grammar "$tmp/none"
fails 2 '--json-schema .*--json-object ' -m /nowhere -p x --json-schema '{}' --json-object
fails 2 '--json-object .*--grammar ' -m /nowhere -p x --json-object --grammar "$tmp/g"
fails 2 '--grammar .*--ignore-eos ' -m /nowhere -p x --grammar "$tmp/g" --ignore-eos
fails 2 '--json-object .*--bench' -m /nowhere --bench --json-object

report
