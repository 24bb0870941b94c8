#!/usr/bin/env python3
"""Writes tests/data/jinja.json: what jinja2 makes of small templates with the settings of transformers (jinja2 3.1.6 and
transformers 5.23.0 from PyPI). A case is a template and its text; null: it is refused, when it is read or when it is run.

test_jinja reads it. usage: TZ=UTC jinja_cases.py > tests/data/jinja.json
"""

import copy
import datetime
import json

from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment
from transformers.utils import chat_template_utils

NOW = 1763874123

CONTEXT = {'name': 'Ann',
 'n': 7,
 'z': 0,
 'x': 2.5,
 'xs': [3, 1, 2],
 'ws': ['b', 'A', 'c', 'a'],
 'd': {'b': 1, 'a': [1, 2], 'C': 't'},
 't': '  Hello wörld \n',
 'u': '<|im_end|>',
 'none': None,
 'yes': True,
 'ms': [{'role': 'user', 'content': 'hi'},
        {'role': 'assistant', 'content': 'ho', 'n': 2},
        {'role': 'user', 'content': 'bye'}],
 'long': 'one two  three\nfour\n\nfive',
 'bos_token': '<s>',
 'nested': {'k': {'l': [{'m': 5}]}},
 'items': [['a', 1], ['b', 2]],
 's': 'a,b,,c',
 'e': '',
 'html': '<a href="x">\'&\'</a>',
 'uni': '日本語 ✓ ß É'}

TEMPLATES = [
    'a{{ n }}b',
    '{{ name }}{{ missing }}|{{ none }}|{{ yes }}|{{ x }}|{{ xs }}|{{ d }}',
    '{% if n > 5 %}big{% elif n > 3 %}mid{% else %}small{% endif %}',
    '{% if z %}a{% elif e %}b{% elif none %}c{% else %}d{% endif %}',
    '{% for i in xs %}{{ loop.index }}:{{ i }}{% if not loop.last %},{% endif %}{% endfor %}',
    '{% for i in xs %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }};{% endfor %}',
    '{% for i in xs %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}',
    '{% for i in [] %}x{% else %}none{% endfor %}{% for i in xs %}y{% else %}none{% endfor %}',
    '{% for i in xs if i > 1 %}{{ loop.index }}/{{ loop.length }}={{ i }} {% endfor %}',
    '{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}',
    '{% for a, b in items %}{{ a }}{{ b }}{% endfor %}',
    '{% for k in d %}{{ k }}{% endfor %}{% for c in "añb" %}[{{ c }}]{% endfor %}',
    '{% for i in xs %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}',
    '{% for i in range(3) %}{% for j in range(i) %}{{ i }}{{ j }}{{ loop.index }} {% endfor %}{% endfor %}',
    '{% set a = 1 %}{% set b, c = 2, 3 %}{{ a }}{{ b }}{{ c }}{% set a = a + 1 %}{{ a }}',
    '{% set a = 1 %}{% for i in xs %}{% set a = a + i %}{{ a }} {% endfor %}{{ a }}',
    "{% set ns = namespace(a=1, b='x') %}{% for i in xs %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}",
    '{% if true %}{% set q = 5 %}{% endif %}{{ q }}',
    '{% set block %}<{{ name }}>{% endset %}{{ block }}{{ block|length }}',
    '{% set block | upper | trim %}  {{ name }} {% endset %}[{{ block }}]',
    '{% macro m(a, b=2, c=a) %}({{ a }},{{ b }},{{ c }}){% endmacro %}{{ m(1) }}{{ m(1, 5) }}{{ m(b=3, a=4) }}{{ m(1)|length }}',
    '{% macro m(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ m() }}{{ m(none) }}',
    '{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, k=3) }}',
    '{% macro list(x) %}{% if x %}{{ x[0] }}{{ list(x[1:]) }}{% endif %}{% endmacro %}{{ list(xs) }}',
    "{% macro box(t) %}[{{ t }}:{{ caller() }}]{% endmacro %}{% call box('h') %}in {{ name }}{% endcall %}",
    '{% macro each(l) %}{% for i in l %}{{ caller(i, loop.index) }}{% endfor %}{% endmacro %}{% call(v, k) each(xs) %}<{{ v }}{{ k }}>{% endcall %}',
    '{% set v = 1 %}{% macro m() %}{{ v }}{% set v = 9 %}{{ v }}{% endmacro %}{% set v = 2 %}{{ m() }}{{ v }}',
    "{% filter upper %}abc {{ name }}{% endfilter %}{% filter replace('a', 'b') | trim %} aaa {% endfilter %}|",
    '{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}',
    '{% generation %}x{{ name }}{% endgeneration %}',
    '{% raw %}{{ not }} {% this %}{% endraw %}!',
    '{% raw -%}   x   {%- endraw %}!',
    'a {# comment #} b{#- c -#}  d',
    '{{ 1 + 2 * 3 }}|{{ (1 + 2) * 3 }}|{{ 7 / 2 }}|{{ 7 // 2 }}|{{ -7 // 2 }}|{{ 7 % 3 }}|{{ -7 % 3 }}|{{ 2 ** 10 }}|{{ 2 ** -1 }}|{{ 2 ** 3 ** 2 }}',
    '{{ 7.5 // 2 }}|{{ -7.5 % 2 }}|{{ 1e3 }}|{{ 1.0 }}|{{ 1e16 }}|{{ 1e-5 }}|{{ 123456789012345.6 }}|{{ 0.1 + 0.2 }}|{{ 1_000 }}|{{ 10 / 5 }}',
    "{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}{{ 1 == 1.0 }}{{ true == 1 }}{{ 'a' < 'b' }}{{ [1, 2] < [1, 3] }}{{ 'a' != 'b' }}{{ 3 >= 3 }}{{ none == false }}",
    "{{ 1 in xs }}{{ 9 in xs }}{{ 'b' in d }}{{ 'ell' in t }}{{ 9 not in xs }}{{ 1 in missing }}{{ not 1 in xs }}",
    "{{ 'a' ~ 1 ~ none ~ true ~ missing ~ 2.50 }}|{{ 'a' + 'b' }}|{{ 'ab' * 3 }}|{{ [1] + [2] }}|{{ [0] * 3 }}|{{ (1,) + (2,) }}",
    "{{ n and name }}|{{ z and name }}|{{ z or name }}|{{ e or none or 'x' }}|{{ not z }}|{{ not name }}|{{ true and false or true }}",
    "{{ 'y' if yes else 'n' }}|{{ 'y' if z else 'n' }}|{{ 'y' if z }}|{{ 1 if z else 2 if e else 3 }}",
    '{{ -n }}|{{ +n }}|{{ - -n }}|{{ -2 ** 2 }}|{{ -n|abs }}|{{ not n == 7 }}',
    "{{ xs[0] }}{{ xs[-1] }}{{ xs[9] }}|{{ name[0] }}{{ name[-1] }}{{ uni[1] }}|{{ d['a'] }}{{ d.a }}{{ d.zz }}|{{ nested.k.l[0].m }}|{{ nested['k']['l'].0.m }}",
    '{{ xs[1:] }}{{ xs[:-1] }}{{ xs[::-1] }}{{ xs[::2] }}{{ xs[-2:] }}{{ xs[5:] }}|{{ name[1:] }}|{{ uni[::-1] }}|{{ uni[1:3] }}|{{ uni[-3:] }}|{{ name[5:2] }}|{{ xs[2:0:-1] }}',
    "{{ [] }}{{ [1, 'a', none, true, 1.5, [2], (3,), {'k': 'v'}] }}{{ () }}{{ (1, 2) }}{{ {} }}{{ {'a': 1, 2: 'b'} }}{{ [1,] }}",
    '{{ "it\'s" }}{{ [\'it\\\'s\', "q\\"", \'b\\\\\', "n\\n", \'é\', \'\\u200b\', "a\'b\\"c"] }}{{ \'\\x41\\u00e9\\101\\t|\' }}{{ \'a\' \'b\' "c" }}{{ \'\\q\' }}',
    "{{ ms[0].role }}{{ ms[-1]['content'] }}{{ ms|length }}{{ ms[1].n }}{{ ms[0].n }}{{ ms[0].n is defined }}{{ ms[0].get('n') }}{{ ms[0].get('n', 3) }}",
    '{{ name.upper() }}{{ name.lower() }}{{ uni.upper() }}{{ uni.lower() }}{{ \'hello wOrld\'.title() }}{{ \'hello wOrld\'.capitalize() }}{{ "they\'re x2y".title() }}',
    "[{{ t.strip() }}][{{ t.lstrip() }}][{{ t.rstrip() }}][{{ 'xxaxx'.strip('x') }}][{{ 'xyaxy'.lstrip('yx') }}][{{ 'aé'.rstrip('é') }}][{{ '\\n\\nx\\n'.strip('\\n') }}]",
    "{{ s.split(',') }}{{ s.split(',', 1) }}{{ long.split() }}{{ long.split(none, 1) }}{{ 'a</think>b</think>c'.split('</think>')[-1] }}{{ s.rsplit(',', 1) }}{{ ''.split() }}{{ ''.split(',') }}",
    "{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith('bc') }}{{ 'abc'.startswith(('x', 'a')) }}{{ 'abc'.endswith('x') }}{{ ''.startswith('') }}",
    "{{ 'aXbXc'.replace('X', '-') }}{{ 'aXbXc'.replace('X', '-', 1) }}{{ 'abc'.replace('', '.') }}{{ 'abc'.find('c') }}{{ 'abc'.find('x') }}{{ uni.find('✓') }}{{ 'abcabc'.rfind('b') }}{{ 'aXbXc'.count('X') }}{{ 'abcb'.index('b') }}",
    "{{ ', '.join(ws) }}{{ 'a\\nb\\r\\nc\\n'.splitlines() }}{{ 'k=v=w'.partition('=') }}{{ 'k=v=w'.rpartition('=') }}{{ 'prefix_x'.removeprefix('prefix_') }}{{ 'x.py'.removesuffix('.py') }}",
    "{{ '123'.isdigit() }}{{ 'a1'.isdigit() }}{{ 'ab'.isalpha() }}{{ 'a1'.isalnum() }}{{ ' \\n'.isspace() }}{{ ''.isdigit() }}",
    "{{ '{} and {}'.format(1, 'b') }}{{ '{0}{1}{0}'.format('x', 'y') }}{{ '{a}{{}}'.format(a=1) }}",
    '{{ d.keys()|list }}{{ d.values()|list }}{{ d.items()|list }}{{ d|items|list }}{{ d|dictsort }}{{ d|dictsort(true) }}{{ d|dictsort(reverse=true) }}',
    "{{ xs|sort }}{{ xs|sort(reverse=true) }}{{ ws|sort }}{{ ws|sort(case_sensitive=true) }}{{ ms|sort(attribute='content')|map(attribute='content')|list }}{{ xs|reverse|list }}{{ name|reverse }}",
    "{{ xs|first }}{{ xs|last }}{{ xs|min }}{{ xs|max }}{{ xs|sum }}{{ ws|max }}{{ []|first }}{{ [1, 2.5]|sum }}{{ ms|map(attribute='n', default=0)|sum }}",
    "{{ xs|join }}{{ xs|join(', ') }}{{ ms|join('|', attribute='role') }}{{ xs|length }}{{ name|length }}{{ uni|length }}{{ d|count }}{{ missing|length }}",
    "{{ ms|map(attribute='role')|list }}{{ xs|map('string')|list }}{{ ws|map('upper')|join }}{{ xs|map('default', 1)|list }}{{ ms|map(attribute='x.y', default='-')|list if false }}",
    "{{ xs|select('odd')|list }}{{ xs|reject('odd')|list }}{{ xs|select('gt', 1)|list }}{{ xs|select('in', [1, 2])|list }}{{ [0, 1, '', 'a']|select|list }}{{ none|select|list }}",
    "{{ ms|selectattr('role', 'equalto', 'user')|map(attribute='content')|list }}{{ ms|rejectattr('role', '==', 'user')|list|length }}{{ ms|selectattr('n')|list|length }}{{ ms|selectattr('n', 'defined')|first }}",
    "{{ missing|default('d') }}{{ none|default('d') }}{{ none|default('d', true) }}{{ e|default('d', boolean=true) }}{{ name|d('d') }}{{ missing|default }}",
    "{{ 'a b'|title }}{{ 'hello-world foo(bar'|title }}{{ 'ABC'|lower }}{{ 'abc'|upper }}{{ 'aBC dEF'|capitalize }}{{ '  x '|trim }}{{ 'xxaxx'|trim('x') }}{{ 5|string ~ 'x' }}",
    "{{ 'aaa'|replace('a', 'b') }}{{ 'aaa'|replace('a', 'b', 2) }}{{ 12|replace('1', 'x') }}{{ 'a\\nb\\n\\nc'|indent }}|{{ 'a\\nb'|indent(2, true) }}|{{ 'a\\n\\nb'|indent(2, blank=true) }}|{{ 'a\\nb'|indent('>>') }}|{{ 'a\\n'|indent }}|",
    "{{ '42'|int }}{{ '4.7'|int }}{{ 'x'|int }}{{ 'x'|int(5) }}{{ 3.9|int }}{{ '1.5'|float }}{{ 'x'|float }}{{ 2|float }}{{ true|int }}{{ ' 7 '|int }}",
    "{{ 2.5|round }}{{ 3.5|round }}{{ 2.567|round(2) }}{{ 2.1|round(method='ceil') }}{{ 2.9|round(0, 'floor') }}{{ 7|round }}{{ -3|abs }}{{ -2.5|abs }}{{ 2.675|round(2) }}",
    '{{ html|escape }}{{ html|e|length }}{{ html|safe }}',
    "{{ [1, 2, 3, 4, 5]|batch(2)|list }}{{ [1, 2, 3]|batch(2, 0)|list }}{{ ['a', 'A', 'b', 'a']|unique|list }}{{ [1, 2, 1]|unique|join }}",
    '{{ d|tojson }}{{ [1, 2.0, true, none, "é\\n\\"\\\\", 1e20]|tojson }}{{ {}|tojson }}{{ []|tojson }}{{ \'x\'|tojson }}{{ {1: 2, none: 3, true: 4}|tojson }}{{ (1, 2)|tojson }}',
    "{{ d|tojson(indent=2) }}{{ []|tojson(indent=4) }}{{ {'a': {}}|tojson(indent=1) }}{{ d|tojson(indent='--') }}",
    "{{ d|tojson(sort_keys=true) }}{{ d|tojson(separators=(',', ':')) }}{{ 'é😀'|tojson(ensure_ascii=true) }}{{ html|tojson }}{{ '\\u0001\\x7f\\u2028'|tojson }}",
    '{{ name is string }}{{ n is string }}{{ n is number }}{{ x is float }}{{ n is integer }}{{ yes is boolean }}{{ yes is integer }}{{ yes is number }}{{ d is mapping }}{{ xs is sequence }}{{ d is sequence }}{{ name is sequence }}{{ n is sequence }}',
    '{{ xs is iterable }}{{ name is iterable }}{{ n is iterable }}{{ missing is iterable }}{{ none is none }}{{ missing is none }}{{ missing is defined }}{{ missing is undefined }}{{ name is defined }}{{ d.q is defined }}{{ d.a is not none }}',
    "{{ yes is true }}{{ yes is false }}{{ 1 is true }}{{ n is odd }}{{ n is even }}{{ n is divisibleby 7 }}{{ n is divisibleby(2) }}{{ 3 is eq 3 }}{{ 3 is in [3] }}{{ 'a' is in 'abc' }}{{ n is gt 5 }}{{ n is sameas n }}{{ 'abc' is lower }}{{ 'ABC' is upper }}{{ 'a' is not in ['b'] }}",
    "{{ range is callable }}{{ name is callable }}{{ 'upper' is filter }}{{ 'nope' is filter }}{{ n is not string and n is number }}",
    "{{ range(3)|list }}{{ range(1, 4)|list }}{{ range(5, 0, -2)|list }}{{ dict(a=1, b=2) }}{{ dict([('x', 1)], y=2) }}",
    "{{ strftime_now('%Y-%m-%d %H:%M:%S') }}|{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%A, %B %-d, %j %I %p %y %a %%') }}",
    "{{ raise_exception('stop: ' ~ name) }}",
    '{{ missing.x }}',
    '{{ missing() }}',
    '{{ name.nope() }}',
    "{{ 1 + 'a' }}",
    "{{ 'a' + 1 }}",
    '{{ none + 1 }}',
    '{{ none.x.y }}',
    '{{ none.x }}|',
    '{{ 1 / 0 }}',
    "{{ 1 < 'a' }}",
    "{{ 'a' in 5 }}",
    "{{ 1 in 'abc' }}",
    '{{ xs|nope }}',
    '{% if false %}{{ xs|nope }}{% endif %}ok',
    '{{ xs is nope }}',
    '{% for i in 5 %}{% endfor %}',
    '{% for a, b in xs %}{% endfor %}',
    '{% set d.x = 1 %}',
    '{{ missing|tojson }}',
    "{% for m in ms %}{{ '<|im_start|>' + m.role + '\\n' + m['content'] + '<|im_end|>' }}{% if loop.last and add %}x{% endif %}{% endfor %}",
    '{%- set last = ms|length - 1 %}{% for m in ms[::-1] %}{% set idx = last - loop.index0 %}{{ idx }}{{ m.role }}{% endfor %}',
    "{% set ns = namespace(found=false) %}{% for m in ms if m.role == 'assistant' %}{% set ns.found = true %}{% endfor %}{{ ns.found }}",
    "{% for m in ms %}{{ m.content if m.content is string else '' }}{{ ',' if not loop.last }}{% endfor %}",
    "{{ (xs|length > 2) and 'many' }}{{ xs|length == 3 and n is odd }}{{ ms[0]['role'] == 'user' or false }}",
    '{{ loop is defined }}{{ caller is defined }}{{ self is defined if false }}',
    "{% set a = [1, 2] %}{% set a = a + [3] %}{{ a }}{% set m = {'k': 1} %}{{ m.k }}{{ m['k'] }}",
    "{{ ms|map(attribute='content')|map('upper')|join('-') }}{{ ms|selectattr('role', 'in', ['user'])|list|length }}{{ items|map('first')|list }}{{ items|map('last')|list }}",
    "{{ {'a': 1, 'a': 2} }}{{ {'x': [1, {'y': 2}]}.x[1].y }}{{ [[1, 2], [3]]|map('length')|list }}{{ 'abc'|list }}{{ d|list }}{{ 'a'|first }}",
    "{{ 5 is number if name else 0 }}|{{ (name, n)[1] }}|{{ name ~ (n if n else z) }}|{{ [n, name]|join(' ') }}",
    "{{- '' -}}",
    '{% set x %}{% for i in xs %}{{ i }}{% endfor %}{% endset %}{{ x }}{{ x is string }}{{ x|int + 1 }}',
    '{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}',
    "{% if name == 'Ann' and not (n < 5 or z) %}{{ 'in' }}{% endif %}{% if not missing %}m{% endif %}{% if missing is not defined or missing %}d{% endif %}",
    "{{ 'x' if missing is undefined else 'y' }}{{ missing == none }}{{ missing == missing2 }}{{ missing ~ 'a' }}{{ [missing] }}{{ missing|string|length }}",
    '{{ 9223372036854775807 }}{{ -9223372036854775807 }}',
    "{{ (1, 2) == (1, 2) }}{{ [1] == (1,) }}{{ {'a': 1} == {'a': 1.0} }}{{ 'a' == 'a' }}{{ [missing, 1]|length }}",
    "{{ 'ﬁ ǆ'.upper()|length > 0 }}{{ 'ÀÉÎ'.lower() }}{{ 'straße'.upper() }}{{ 'ß'.capitalize() }}",
    '{{ 3.0|int }}{{ 3.7|string }}{{ 1e100 }}{{ 1.5e300 * 1e300 }}{{ 5 // 2.0 }}{{ 2 ** 0.5 }}{{ 10 % 2.5 }}{{ true + true }}',
    "{{ xs|map('nope')|list }}",
    "{{ xs|join(1) }}{{ 'abc'|join('-') }}{{ d|join(',') }}{{ 'a,b'.split(',')|join('+') }}",
    "{{ bos_token + ' x' }}{{ u ~ bos_token }}",
    "{% set t2 = t|trim %}{{ t2 }}{% if t2.startswith('Hello') and t2[-1] == 'd' %}!{% endif %}{{ t2[:5] }}{{ t2|length }}",
    '  {% if true %}\n  x\n  {% endif %}\ny\n',
    '  {%- if true -%}\n  x\n  {%- endif -%}\ny',
    'a\n    {%+ if true %}\n  x\n    {% endif +%}\nz\n',
    '  {{ name }}\n  {{- name -}}\n  z',
    '{% for i in xs %}\n  - {{ i }}\n{% endfor %}\nend',
    "{{ 'a\\\nb' }}",
    'a\r\nb\rc\n\n',
    'x{# c\n #}\n  {# d #}\ny',
    '{% raw %}\n {{ a }}\n{% endraw %}\nb\n',
    '  {% set a = 1 %}  {% set b = 2 %}\n{{ a }}',
    '{% if true %}\n\n  a{% endif %}\n\n',
    '{{ name\n}}\n\n\n',
    '{%- for m in ms -%}\n  {{ m.role }}\n  {%- if not loop.last %}\n, \n  {%- endif -%}\n{%- endfor %}\n',
    '{%\n  set a = [\n 1,\n 2 ]\n%}\n{{ a\n  | length }}',
    '\t{% if true %}t{% endif %}',
    'a {%- if true %} b {% endif -%} c',
    'a{#- x #} b {#+ y #}\n  {#+ z +#}\nc',
    '{{ \'%}\' }}{{ "}}" }}{% set a = \'{{\' %}{{ a }}',
    "{{ {'a': {'b': 1}}['a']['b'] }}{{ {'x': {}}}}",
    '{{ \'<b>\'|safe ~ \'<i>\' }}{{ \'<i>\' ~ \'<b>\'|safe }}{% set x = \'<\'|e %}{{ x + \'>\' }}{{ \'&\' + x }}{{ (x + \'>\')[4:] + \'"\' }}{{ x.strip() ~ "\'" }}{{ x|upper ~ \'<\' }}{{ x ~ 1 ~ none }}{{ x|e }}',
    "{{ dict(a=1, **{'b': 2}) }}{{ range(*[1, 3])|list }}",
    "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1], **{'b': 2}) }}",
    '{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}',
    '{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}',
    '{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}',
    '{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}',
    '{% for i in xs %}{% for j in xs %}{% if j == 1 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}',
    '{% for i in xs %}{% set loop_i = loop.index %}{% for j in [1] %}{{ loop_i }}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}',
    "{% set ns = namespace(a=[]) %}{% for i in xs %}{% set ns.a = ns.a + [i] %}{% endfor %}{{ ns.a|join(',') }}",
    '{% set (a, b) = (1, 2) %}{{ a }}{{ b }}{% for (k, v) in items %}{{ k }}{{ v }}{% endfor %}',
    '{% set a, (b, c) = 1, (2, 3) %}{{ a }}{{ b }}{{ c }}',
    '{% if xs %}{% for x in xs %}{{ x }}{% endfor %}{% endif %}',
    "{{ xs|select('odd') is iterable }}{% set g = xs|select('odd') %}{{ g|list }}{{ g|list }}{% if xs|select('gt', 9) %}t{% endif %}",
    "{{ xs|select('odd')|length }}",
    "{{ (xs|map('string'))[0] }}|",
    '{% set n = 1 %}{% if n == 1 %}{% set n = 2 %}{% endif %}{{ n }}{% for i in [1] %}{{ n }}{% set n = 3 %}{{ n }}{% endfor %}{{ n }}',
    "{% for i in xs %}{{ q|default('u') }}{% set q = i %}{{ q }}{% endfor %}",
    "{% set ns = namespace() %}{{ ns.x is defined }}{% set ns.x = 1 %}{{ ns.x }}{{ ns['x'] }}",
    '{% set ns = namespace() %}{% set ns._x = 1 %}',
    '{{ messages }}{{ messages is defined }}',
    '{% if a is defined and a %}1{% else %}2{% endif %}',
    "{{ '%s' }}{{ 'a' 'b' ~ 'c' }}",
    "{{ [1,2,3][1:]|first }}{{ 'abc'[1:]|upper }}{{ -1|abs + 2 }}",
    "{{ d.a[0] + d.b }}{{ d['a'][-1] }}",
    '{{ xs.index(2) }}{{ xs.count(1) }}{{ xs.index(99) }}',
    "{{ {'k': none}.get('k', 5) }}{{ {}.get('k",
    "{{ {'items': 3}['items'] }}{{ {'a': 1}.items()|list }}",
    '{{ 1 if }}',
    '{{ }}',
    '{% if %}{% endif %}',
    '{% for x xs %}{% endfor %}',
    "{{ 'abc }}",
    '{{ (1 }}',
    '{% if true %}',
    '{% endif %}',
    '{{ a b }}',
    '{# open',
    '{% raw %}x',
    '{{ 1 ! 2 }}',
    '{% set 5 = 1 %}',
    '{% break %}',
    '{% macro m(a=1, b) %}{% endmacro %}',
    '{% block b %}{% nope %}',
    '{{ a.b. }}',
    '{% else %}',
    '}} %} #}',
    '{ { % %',
]


# Methods that change a list or a dict, which transformers refuses: jinja2's sandbox without that rule.
CHANGES = [
    "{{ xs.append(4) }}{{ xs }}",
    "{% set ns = namespace(q=[]) %}{% for w in ws %}{% set _ = ns.q.append(w ~ loop.index0) %}{% endfor %}"
    "{% for w in ws %}{{ ns.q.pop(0) }}{% if ns.q %},{% endif %}{% endfor %}{{ ns.q }}",
    "{% set a = xs %}{% set _ = a.append(9) %}{{ xs }}{{ a is sameas xs }}",
    "{% set a = xs.copy() %}{% set b = xs[:] %}{% set c = xs|list %}{% set e = xs + [] %}"
    "{% set _ = xs.append(9) %}{{ [a, b, c, e, xs] }}",
    "{% set a = d.copy() %}{% set b = dict(d) %}{% set _ = d.update(z=1) %}{{ [a, b, d] }}",
    "{% macro m(l) %}{% set _ = l.append(1) %}{{ l }}{% endmacro %}{{ m([]) }}{{ m([]) }}{{ m(xs) }}{{ xs }}",
    "{% for i in [1, 2] %}{% set l = [] %}{% set _ = l.append(i) %}{{ l }}{% endfor %}",
    "{% for x in xs %}{{ x }}{% if x < 5 %}{% set _ = xs.append(x + 3) %}{% endif %};{% endfor %}",
    "{% for m in ms %}{% set _ = m.update({'role': 'r' ~ loop.index}) %}{% endfor %}{{ ms|map(attribute='role')|list }}",
    "{{ xs.pop() }}{{ xs.pop(0) }}{{ xs.pop(-1) }}{{ xs }}",
    "{{ xs.pop(-3) }}{{ xs }}{{ xs.pop(true) }}{{ xs }}",
    "{{ xs.pop(3) }}", "{{ xs.pop(-4) }}", "{{ [].pop() }}", "{{ xs.pop('0') }}", "{{ xs.pop(1, 2) }}", "{{ xs.append() }}",
    "{{ xs.insert(0, 'a') }}{{ xs.insert(-1, 'b') }}{{ xs.insert(99, 'c') }}{{ xs.insert(-99, 'd') }}{{ xs }}",
    "{{ xs.extend(ws) }}{{ xs }}{{ xs.extend('ab') }}{{ xs.extend({'k': 1}) }}{{ xs }}",
    "{{ xs.extend(xs) }}{{ xs }}{{ xs.extend(ws|select) }}{{ xs }}", "{{ xs.extend(5) }}",
    "{{ xs.remove(1) }}{{ xs }}{{ xs.reverse() }}{{ xs }}{{ xs.clear() }}{{ xs }}{{ xs.append(1) }}{{ xs }}",
    "{{ xs.remove(8) }}",
    "{{ xs.sort() }}{{ xs }}{{ xs.sort(reverse=true) }}{{ xs }}{{ ws.sort() }}{{ ws }}", "{{ xs.sort(true) }}",
    "{{ [1, 'a'].sort() }}", "{{ (1, 2).append(3) }}", "{{ (1, 2).copy() }}", "{{ 'a'.append('b') }}",
    "{{ d.pop('b') }}{{ d }}{{ d.pop('b', 5) }}{{ d.pop('b', none) }}{{ d.pop('a') }}{{ d }}",
    "{{ d.pop('nope') }}", "{{ d.pop() }}", "{{ {}.popitem() }}",
    "{{ d.popitem() }}{{ d }}{{ d.clear() }}{{ d }}{{ d.update({'q': 1}) }}{{ d }}",
    "{{ d.setdefault('b', 7) }}{{ d.setdefault('n') }}{{ d.setdefault('m', []).append(1) }}{{ d }}",
    "{{ d.update([['a', 0], ('y', 1)], z=2) }}{{ d }}{{ d.update() }}{{ d.update(q=1) }}{{ d }}", "{{ d.update(5) }}",
    "{% set _ = nested.k.l[0].update(m=6) %}{{ nested }}{{ nested|tojson }}",
]


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW)


def render(template):
    compiler = chat_template_utils._cached_compile_jinja_template
    try:
        return getattr(compiler, "__wrapped__", compiler)(template).render(**copy.deepcopy(CONTEXT))
    except Exception:
        return None


def render_changes(template):
    refuses = ImmutableSandboxedEnvironment.is_safe_attribute
    ImmutableSandboxedEnvironment.is_safe_attribute = SandboxedEnvironment.is_safe_attribute
    made = render(template)
    ImmutableSandboxedEnvironment.is_safe_attribute = refuses
    return made


def main():
    chat_template_utils.datetime = Clock
    cases = [[template, render(template)] for template in TEMPLATES]
    cases += [[template, render_changes(template)] for template in CHANGES]
    print(json.dumps({"now": NOW, "context": CONTEXT, "cases": cases}, indent=0, ensure_ascii=False))


main()
