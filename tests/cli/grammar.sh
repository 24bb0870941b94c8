#!/bin/sh
# Answers that fit a schema or a grammar, with the embedded model on the CPU.
# suites: later asan
# shellcheck disable=SC2016 # Python's text
. tests/lib/cli.sh

model=$tmp/tiny
run 0 "$MOEFLUX" convert tests/models/tiny "$model"
set -- -m "$model" --device cpu --no-think

fails() {
    fails_status=$1 fails_text=$2
    shift 2
    run "$fails_status" "$MOEFLUX" "$@"
    err_has "$fails_text"
    out_empty
}

claim two_hundred_documents_of_varied_schemas_are_valid
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
    return {'type': 'object', 'properties': {n: schema(depth - 1) for n in names}, 'additionalProperties': False,
            'required': random.sample(names, random.randrange(len(names) + 1))}

tree = {'type': 'object', 'properties': {'v': {'type': 'integer', 'minimum': 0, 'maximum': 9}, 'next': {'anyOf': [
    {'type': 'null'}, {'$ref': '#'}]}}, 'required': ['v', 'next'], 'additionalProperties': False}
for i in range(206):
    print(json.dumps({'id': i, 'prompt': 'Answer in JSON.', 'json_schema': tree if i % 20 == 0 else schema(i % 3),
                      'seed': i, 'n': 120, 'temp': 1.5, 'top_k': 0, 'top_p': 1}))
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
        return (isinstance(v, list) and s.get('minItems', 0) <= len(v) <= most
                and all(fits(x, y, root) for x, y in zip(v, first + [s.get('items')] * (len(v) - len(first)))))
    return (isinstance(v, dict) and set(s['required'] if 'required' in s else []) <= set(v) <= set(s['properties'])
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
sys.exit(ended < 200 or ended + cut != 206)
END
python3 "$tmp/make.py" >"$tmp/in"
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
python3 - "$tmp/out" <<'END' || fault "$(head -c 300 "$tmp/out")"
import json, sys
r = json.load(open(sys.argv[1]))
sys.exit(not (len(r['thinking']) > 10 and json.loads(r['text']) in ('yes', 'no') and r['stop_reason'] == 'eos'))
END

claim a_json_object_of_the_command_line_holds_for_lines_that_say_nothing
printf '%s\n' '{"prompt": "x", "n": 3, "seed": 1}' \
    '{"prompt": "x", "grammar": "root ::= \"ok\"", "seed": 1}' \
    '{"prompt": "x", "grammar": "root ::= b", "seed": 1}' '{"prompt": "x", "json_schema": {"not": {}}}' \
    '{"prompt": "x", "json_object": true, "grammar": "root ::= \"a\""}' '{"prompt": "x", "json_object": 1}' \
    '{"prompt": "x", "json_object": true, "ignore_eos": true}' >"$tmp/in"
run 1 "$MOEFLUX" "$@" --json-object --ordered --batch "$tmp/in"
python3 - "$tmp/out" <<'END' || fault "$(head -c 900 "$tmp/out")"
import json, sys
r = [json.loads(l) for l in open(sys.argv[1])]
assert r[0]['text'].startswith('{') and r[0]['stop_reason'] == 'length', r[0]
assert r[1]['text'] == 'ok' and r[1]['stop_reason'] == 'eos', r[1]
for x, why in zip(r[2:], ['line 3: grammar: line 1, column 10: the rule "b" is not defined',
                          'line 4: json_schema: #/"not": this keyword is not supported',
                          'line 5: json_schema, json_object and grammar exclude each other',
                          'line 6: json_object', 'line 7: ignore_eos and a grammar exclude each other']):
    assert x['error'].startswith(why), x
END

claim what_is_wrong_with_a_schema_or_a_grammar_is_told_before_the_model_is_loaded
printf 'root ::= "a\n' >"$tmp/g"
printf '{"type": "object", "properties": {"a": {"uniqueItems": true}}}' >"$tmp/schema"
fails 2 'g: line 1, column 10: this text has no closing' -m /nowhere -p x --grammar "$tmp/g"
fails 2 'schema: #/properties/a/"uniqueItems": this keyword is not supported' -m /nowhere -p x --json-schema \
    "$tmp/schema"
fails 2 '^moeflux: --json-schema: #/type: expected string' -m /nowhere -p x --json-schema ' {"type":"text"}'
fails 2 'none: No such file' -m /nowhere -p x --grammar "$tmp/none"
fails 2 'json-schema and --json-object exclude each other' -m /nowhere -p x --json-schema '{}' --json-object
fails 2 'json-object and --grammar exclude each other' -m /nowhere -p x --json-object --grammar "$tmp/g"
fails 2 'grammar and --ignore-eos exclude each other' -m /nowhere -p x --grammar "$tmp/g" --ignore-eos
fails 2 'json-object and --bench' -m /nowhere --bench --json-object

report
