/* markdown.js - GitHub's Markdown as nodes of the page. Text never becomes HTML, so it cannot add code. */
function node(kind, name, ...children) {
  const e = document.createElement(kind);
  if (name) e.className = name;
  e.append(...children);
  return e;
}

/* --- blocks --- */

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/, ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)(.*)$/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/, HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const TABLE_LINE = /^ *\|?( *:?-+:? *\|)+( *:?-+:? *)?\|? *$/;
const MATH_OPEN = /^\s*(\$\$|\\\[)(.*)$/;

const startsBlock = (lines, i) => FENCE.test(lines[i]) || HEADING.test(lines[i]) || RULE.test(lines[i]) ||
  MATH_OPEN.test(lines[i]) || /^ {0,3}>/.test(lines[i]) || /^ {0,3}([-*+]|1[.)]) +\S/.test(lines[i]);

function codeBlock(text, language) {
  const copy = node('button', '', 'Copy');
  copy.type = 'button';
  copy.addEventListener('click', () => copyText(text, copy));
  const box = node('div', 'code', node('pre', '', node('code', '', text)), copy);
  if (language) box.dataset.language = language;
  return box;
}

function readFence(lines, i, out) {
  const [, mark, language] = FENCE.exec(lines[i]), body = [];
  const end = new RegExp('^ {0,3}' + mark[0] + '{' + mark.length + ',} *$');
  for (i++; i < lines.length && !end.test(lines[i]); i++) body.push(lines[i]);
  out.append(codeBlock(body.join('\n'), language.trim()));
  return i + 1;
}

function readMath(lines, i, out) {
  const [, open, first] = MATH_OPEN.exec(lines[i]), close = open === '$$' ? '$$' : '\\]', body = [];
  for (let rest = first; ; rest = lines[i]) {
    const at = rest.indexOf(close);
    body.push(at < 0 ? rest : rest.slice(0, at));
    i++;
    if (at >= 0 || i >= lines.length) break;
  }
  out.append(mathNode(body.join('\n'), true));
  return i;
}

function readQuote(lines, i, out) {
  const body = [];
  for (; i < lines.length && /^ {0,3}>/.test(lines[i]); i++) body.push(lines[i].replace(/^ {0,3}> ?/, ''));
  const quote = node('blockquote');
  readBlocks(body, quote);
  out.append(quote);
  return i;
}

/* An item's lines are those that are indented as its text, and blank ones between them. */
function readList(lines, i, out) {
  const first = ITEM.exec(lines[i]), ordered = /\d/.test(first[2]), list = node(ordered ? 'ol' : 'ul');
  if (ordered) list.start = parseInt(first[2], 10);
  while (i < lines.length) {
    const m = ITEM.exec(lines[i]);
    if (!m || /\d/.test(m[2]) !== ordered || m[1].length > first[1].length + 3) break;
    const indent = m[1].length + m[2].length + Math.min(m[3].length || 1, 4), body = [m[4]];
    for (i++; i < lines.length; i++) {
      const line = lines[i], deep = line.search(/\S/);
      if (deep < 0) {
        const next = lines.slice(i).find(x => x.trim());
        if (next === undefined || next.search(/\S/) < Math.min(indent, m[1].length + 2)) break;
        body.push('');
      } else if (deep > m[1].length + 1 || (deep > m[1].length && !ITEM.test(line))) {
        body.push(line.slice(Math.min(deep, indent)));
      } else if (ITEM.test(line) || startsBlock(lines, i) || !lines[i - 1].trim()) {
        break;
      } else {
        body.push(line.trim());
      }
    }
    list.append(listItem(body));
    while (i < lines.length && !lines[i].trim() && i + 1 < lines.length && ITEM.test(lines[i + 1])) i++;
  }
  out.append(list);
  return i;
}

function listItem(body) {
  const item = node('li'), task = /^\[([ xX])\]\s+/.exec(body[0]);
  if (task) {
    const box = node('input');
    box.type = 'checkbox';
    box.disabled = true;
    box.checked = task[1] !== ' ';
    item.append(box, ' ');
    body[0] = body[0].slice(task[0].length);
  }
  readBlocks(body, item);
  /* Items of one paragraph have no space between them. */
  for (const p of [...item.children])
    if (p.tagName === 'P' && !body.some(line => !line.trim())) p.replaceWith(...p.childNodes);
  return item;
}

/* The cells of a line; a bar in code or after a backslash divides none. */
function cellsOf(line) {
  const cells = line.trim().replace(/^\|/, '').match(/(\\.|`[^`]*`|[^|\\`]|[\\`])*(\||$)/g) || [];
  if (cells[cells.length - 1] === '') cells.pop();
  return cells.map(c => c.replace(/\|$/, '').trim());
}

function readTable(lines, i, out) {
  const aligns = cellsOf(lines[i + 1]).map(c => c.endsWith(':') ? c.startsWith(':') ? 'center' : 'right' : '');
  const row = (line, kind) => node('tr', '', ...aligns.map((align, k) => {
    const cell = node(kind);
    cell.style.textAlign = align;
    inline((cellsOf(line)[k] || '').replace(/\\\|/g, '|'), cell);
    return cell;
  }));
  const head = node('thead', '', row(lines[i], 'th')), body = node('tbody');
  for (i += 2; i < lines.length && lines[i].includes('|') && lines[i].trim(); i++) body.append(row(lines[i], 'td'));
  out.append(node('div', 'scroll', node('table', '', head, body)));
  return i;
}

function readParagraph(lines, i, out) {
  const body = [lines[i].trimStart()];
  for (i++; i < lines.length && lines[i].trim() && !startsBlock(lines, i); i++) {
    const under = /^ {0,3}(=+|-+) *$/.exec(lines[i]);
    if (under) {
      const h = node(under[1][0] === '=' ? 'h1' : 'h2');
      inline(body.join('\n'), h);
      out.append(h);
      return i + 1;
    }
    body.push(lines[i].trimStart());
  }
  const p = node('p');
  inline(body.join('\n'), p);
  out.append(p);
  return i;
}

/* Appends one block that begins at lines[i]; the index of the line after it. */
function readBlock(lines, i, out) {
  if (FENCE.test(lines[i])) return readFence(lines, i, out);
  if (MATH_OPEN.test(lines[i])) return readMath(lines, i, out);
  if (RULE.test(lines[i])) { out.append(node('hr')); return i + 1; }
  if (/^ {0,3}>/.test(lines[i])) return readQuote(lines, i, out);
  if (ITEM.test(lines[i]) && lines[i].search(/\S/) < 4) return readList(lines, i, out);
  if (i + 1 < lines.length && lines[i].includes('|') && TABLE_LINE.test(lines[i + 1])) return readTable(lines, i, out);
  const heading = HEADING.exec(lines[i]);
  if (!heading) return readParagraph(lines, i, out);
  const h = node('h' + heading[1].length);
  inline(heading[2], h);
  out.append(h);
  return i + 1;
}

/* Appends all blocks; the index of the line where the last one begins. */
function readBlocks(lines, out) {
  let last = 0;
  for (let i = 0; i < lines.length;) {
    if (!lines[i].trim()) { i++; continue; }
    last = i;
    i = readBlock(lines, i, out);
  }
  return last;
}

/* --- inside of a block --- */

const EMPHASIS = [[], ['em'], ['strong'], ['strong', 'em']];
const ENTITIES = {lt: '<', gt: '>', amp: '&', quot: '"', apos: "'", nbsp: '\u00a0'};
const isWord = c => c !== undefined && /[\p{L}\p{N}_]/u.test(c);

/* Where the text after a run of n marks at i ends: the index of the closing run; -1: nowhere. */
function closingRun(text, i, n) {
  const c = text[i], mark = c.repeat(n);
  if (!text[i + n] || /\s/.test(text[i + n])) return -1;
  for (let at = text.indexOf(mark, i + n); at >= 0; at = text.indexOf(mark, at + 1)) {
    if (/\s/.test(text[at - 1]) || text[at - 1] === '\\') continue;
    let run = at;
    while (text[run] === c) run++;
    if (run - at < n || (run - at > n && run - at - n < n && n < 3 && at === run - 1)) continue;
    if (c === '_' && isWord(text[run])) continue;
    return run - n;
  }
  return -1;
}

/* A link's end after "](": the index of ")"; parentheses inside come in pairs. */
function closingParen(text, i) {
  for (let depth = 0; i < text.length && text[i] !== '\n'; i++) {
    if (text[i] === '(') depth++;
    else if (text[i] === ')' && depth-- === 0) return i;
  }
  return -1;
}

function closingBracket(text, i) {
  for (let depth = 0; i < text.length; i++) {
    if (text[i] === '\\') i++;
    else if (text[i] === '[') depth++;
    else if (text[i] === ']' && --depth === 0) return i;
  }
  return -1;
}

function linkNode(address, fill) {
  const a = node('a');
  if (!/^(https?:|mailto:)/i.test(address)) return null;
  a.href = address;
  a.rel = 'noopener noreferrer';
  a.target = '_blank';
  fill(a);
  return a;
}

/* Each takes what begins at text[i]: {end, node}, or null: nothing of its kind is there. */
const inlineKinds = {
  '`'(text, i) {
    const mark = /^`+/.exec(text.slice(i))[0];
    let at = text.indexOf(mark, i + mark.length);
    while (at >= 0 && (text[at + mark.length] === '`' || text[at - 1] === '`')) at = text.indexOf(mark, at + 1);
    if (at < 0) return {end: i + mark.length, node: mark};
    const inner = text.slice(i + mark.length, at).replace(/\n/g, ' ');
    const code = /^ .*[^ ].* $/.test(inner) ? inner.slice(1, -1) : inner;
    return {end: at + mark.length, node: node('code', '', code)};
  },
  '\\'(text, i) {
    const close = text[i + 1] === '(' ? '\\)' : text[i + 1] === '[' ? '\\]' : '';
    const at = close ? text.indexOf(close, i + 2) : -1;
    if (at >= 0) return {end: at + 2, node: mathNode(text.slice(i + 2, at), close === '\\]')};
    if (text[i + 1] === '\n') return {end: i + 2, node: node('br')};
    return /[!-/:-@[-`{-~]/.test(text[i + 1] || '') ? {end: i + 2, node: text[i + 1]} : null;
  },
  '$'(text, i) {
    const mark = text[i + 1] === '$' ? '$$' : '$', at = text.indexOf(mark, i + mark.length);
    if (at <= i + mark.length) return null;
    const inner = text.slice(i + mark.length, at);
    /* Sums of money are no formula. */
    if (mark === '$' && (/^\s|\s$|\n/.test(inner) || /\d/.test(text[at + 1] || '') || inner.endsWith('\\'))) return null;
    return {end: at + mark.length, node: mathNode(inner, mark === '$$')};
  },
  '*'(text, i, depth) {
    const run = /^(\*+|_+)/.exec(text.slice(i))[0];
    if (text[i] === '_' && isWord(text[i - 1])) return {end: i + run.length, node: run};
    for (let n = Math.min(run.length, 3); n > 0; n--) {
      const at = closingRun(text, i, n);
      if (at < 0) continue;
      const [outer, inner] = EMPHASIS[n].map(kind => node(kind));
      if (inner) outer.append(inner);
      inline(text.slice(i + n, at), inner || outer, depth + 1);
      return {end: at + n, node: outer};
    }
    return {end: i + run.length, node: run};
  },
  '~'(text, i, depth) {
    const at = text.startsWith('~~', i) ? closingRun(text, i, 2) : -1;
    if (at < 0) return null;
    const del = node('del');
    inline(text.slice(i + 2, at), del, depth + 1);
    return {end: at + 2, node: del};
  },
  '['(text, i, depth) {
    const close = closingBracket(text, i), end = text[close + 1] === '(' ? closingParen(text, close + 2) : -1;
    if (close < 0 || end < 0) return null;
    const address = text.slice(close + 2, end).trim().replace(/\s+["'(].*$/, '').replace(/^<(.*)>$/, '$1');
    const link = linkNode(address, a => inline(text.slice(i + 1, close), a, depth + 1));
    return link && {end: end + 1, node: link};
  },
  '!'(text, i, depth) { /* a picture is shown as its link: the page fetches nothing */
    const link = text[i + 1] === '[' ? inlineKinds['['](text, i + 1, depth) : null;
    return link;
  },
  '<'(text, i) {
    const line = /^<br\s*\/?>/i.exec(text.slice(i, i + 8));
    if (line) return {end: i + line[0].length, node: node('br')};
    const m = /^<((?:https?:|mailto:)[^\s<>]+)>/i.exec(text.slice(i, i + 2000));
    return m && {end: i + m[0].length, node: linkNode(m[1], a => a.append(m[1]))};
  },
  'h'(text, i) {
    const m = !isWord(text[i - 1]) && /^https?:\/\/[^\s<>"'`]+/.exec(text.slice(i, i + 2000));
    if (!m) return null;
    let address = m[0].replace(/[.,;:!?*_]+$/, '');
    if (address.endsWith(')') && !address.includes('(')) address = address.slice(0, -1);
    return {end: i + address.length, node: linkNode(address, a => a.append(address))};
  },
  '&'(text, i) {
    const m = /^&(?:(\w+)|#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6}));/.exec(text.slice(i, i + 12));
    if (!m) return null;
    const code = m[2] ? parseInt(m[2], 10) : m[3] ? parseInt(m[3], 16) : 0;
    const c = m[1] ? ENTITIES[m[1]] : code > 0 && code < 0x110000 ? String.fromCodePoint(code) : undefined;
    return c === undefined ? null : {end: i + m[0].length, node: c};
  },
  '\n'(text, i) { return {end: i + 1, node: node('br')}; },
};
inlineKinds._ = inlineKinds['*'];

/* Appends the text of a block to `to`. */
function inline(text, to, depth = 0) {
  let plain = '';
  for (let i = 0; i < text.length;) {
    const kind = depth < 30 ? inlineKinds[text[i]] : undefined, found = kind ? kind(text, i, depth) : null;
    if (!found) { plain += text[i++]; continue; }
    to.append(plain.replace(/ +$/, found.node.tagName === 'BR' ? '' : '$&'), found.node);
    plain = '';
    i = found.end;
  }
  to.append(plain);
}

/* --- a text that grows --- */

/* Shows a text in `box`. When the text grows, only what follows the last whole block is made anew. */
class MarkdownView {
  constructor(box) {
    this.box = box;
    this.n_kept = 0;     /* nodes of the box that do not change any more */
    this.from = 0;       /* where the text after them begins */
  }

  update(text) {
    while (this.box.childNodes.length > this.n_kept) this.box.lastChild.remove();
    const lines = text.slice(this.from).replace(/\r\n?/g, '\n').replace(/\t/g, '    ').split('\n');
    const part = document.createDocumentFragment(), last = readBlocks(lines, part);
    if (last > 0 && !text.includes('\r') && !text.includes('\t')) {
      this.n_kept += part.childNodes.length - 1;
      this.from += lines.slice(0, last).reduce((n, line) => n + line.length + 1, 0);
    }
    this.box.append(part);
  }
}
