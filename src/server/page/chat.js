/* chat.js - the conversations, the one that is shown, and what its buttons do. */
const $ = id => document.getElementById(id);
const log = $('log'), ask = $('ask'), send = $('send');
const SETTINGS = ['system', 'effort', 'temperature', 'top_p', 'most', 'key'];
const FILE_MOST = 2 << 20; /* bytes of a dropped file */
let all = [], shown = null, running = null, model = null, files = [];
const removed = new WeakSet(); /* conversations that an answer must not bring back */

/* --- small things --- */

function button(text, action, name = '') {
  const b = node('button', name, text);
  b.type = 'button';
  b.addEventListener('click', action);
  return b;
}

async function copyText(text, b) {
  const before = b.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch { /* only pages of a secure address have a clipboard */
    const area = node('textarea', '', text);
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
  b.textContent = 'Copied';
  setTimeout(() => { b.textContent = before; }, 1200);
}

function say(text, isError = false) {
  $('status').textContent = text;
  $('status').classList.toggle('error', isError);
}

const atEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 60;
const toEnd = () => { log.scrollTop = log.scrollHeight; };
const seconds = ms => (ms / 1000).toFixed(1) + ' s';

/* --- conversations --- */

async function save(c) {
  if (removed.has(c)) return;
  c.changed = Date.now();
  const first = c.messages.find(m => m.role === 'user');
  if (!c.named && first) c.title = first.content.trim().split('\n')[0].slice(0, 60) || 'New chat';
  if (!all.includes(c)) all.unshift(c);
  showList();
  try { await storePut(c); } catch (e) { say('The browser could not keep this conversation: ' + e.message, true); }
}

function matches(c, words) {
  const text = (c.title + '\n' + c.messages.map(m => m.content).join('\n')).toLowerCase();
  return words.every(w => text.includes(w));
}

function listRow(c) {
  const row = node('li'), open = button(c.title, () => show(c), 'title');
  open.title = new Date(c.changed).toLocaleString();
  if (c === shown) row.setAttribute('aria-current', 'true');
  const rename = button('\u270e', () => renameIn(row, c), 'tool'), remove = button('\u2715', () => removeOne(c), 'tool');
  rename.setAttribute('aria-label', 'Rename ' + c.title);
  remove.setAttribute('aria-label', 'Delete ' + c.title);
  row.append(open, rename, remove);
  return row;
}

function showList() {
  const words = $('search').value.toLowerCase().split(/\s+/).filter(Boolean);
  all.sort((a, b) => b.changed - a.changed);
  $('list').replaceChildren(...all.filter(c => matches(c, words)).map(listRow));
}

function renameIn(row, c) {
  const field = node('input');
  field.value = c.title;
  field.setAttribute('aria-label', 'New name');
  let ended = false;
  const end = async keepIt => {
    if (ended) return;
    ended = true;
    if (keepIt && field.value.trim()) { c.title = field.value.trim(); c.named = true; await storePut(c); }
    showList();
  };
  field.addEventListener('keydown', e => {
    if (e.key === 'Enter') end(true);
    if (e.key === 'Escape') end(false);
    e.stopPropagation();
  });
  field.addEventListener('blur', () => end(true));
  row.replaceChildren(field);
  field.focus();
  field.select();
}

async function removeOne(c) {
  if (!confirm(`Delete "${c.title}"?`)) return;
  removed.add(c);
  if (c === shown) { stop(); show(newConversation()); }
  all = all.filter(x => x !== c);
  await storeDelete(c.id);
  showList();
}

function exportAll() {
  const text = JSON.stringify({conversations: all}, null, 1);
  const a = node('a');
  a.href = URL.createObjectURL(new Blob([text], {type: 'application/json'}));
  a.download = 'moeflux-conversations.json';
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 10000);
}

async function importFile(file) {
  try {
    for (const c of readExport(await file.text())) { all.push(c); await storePut(c); }
    showList();
    say('Imported.');
  } catch (e) {
    say(`${file.name}: ${e.message}`, true);
  }
}

/* --- the conversation that is shown --- */

function show(c) {
  if (c !== shown) stop();
  shown = c;
  say('');
  log.replaceChildren(...c.messages.map(m => messageBox(m)));
  showContext();
  showList();
  toEnd();
  if (matchMedia('(max-width: 40rem)').matches) document.body.classList.add('closed');
}

function showContext() {
  const last = shown.messages.findLast(m => m.n_context);
  $('context').textContent = last && model ? `${last.n_context.toLocaleString()} of ${model.max_model_len.toLocaleString()} tokens` : '';
}

function messageBox(m) {
  return m.role === 'user' ? questionBox(m) : answerBox(m).box;
}

function questionBox(m) {
  const said = node('div', 'said', m.content), copy = button('Copy', () => copyText(m.content, copy));
  const box = node('section', 'user', said, node('div', 'tools', copy, button('Edit', () => edit(box, m))));
  box.setAttribute('aria-label', 'Question');
  return box;
}

/* Makes a question editable; sending it again replaces what follows. */
function edit(box, m) {
  const area = node('textarea', 'edit'), before = [...box.childNodes];
  area.value = m.content;
  area.setAttribute('aria-label', 'Question');
  const cancel = () => box.replaceChildren(...before);
  area.addEventListener('keydown', e => { if (e.key === 'Escape') { e.stopPropagation(); cancel(); } });
  const again = button('Send again', () => {
    stop();
    shown.messages.length = shown.messages.indexOf(m);
    m.content = area.value.trim() || m.content;
    shown.messages.push(m);
    show(shown);
    answer(newAnswer());
  }, 'go');
  box.replaceChildren(area, node('div', 'tools', again, button('Cancel', cancel),
    node('span', 'note', 'What follows is replaced.')));
  area.focus();
}

/* The parts of an answer's box, and update(): shows what the message has now. */
function answerBox(m) {
  const fold = node('details', 'thinking'), summary = node('summary'), thinking = node('pre');
  const said = node('div', 'said'), tools = node('div', 'tools'), note = node('span', 'note');
  const box = node('section', 'answer', fold, said, tools), view = new MarkdownView(said);
  fold.append(summary, thinking);
  box.setAttribute('aria-label', 'Answer');
  const update = isRunning => {
    fold.hidden = !m.thinking;
    if (m.thinking) {
      summary.textContent = m.think_ms === undefined ? 'Thinking\u2026' : `Thought for ${seconds(m.think_ms)}`;
      if (thinking.textContent.length !== m.thinking.length) thinking.textContent = m.thinking;
    }
    view.update(m.content);
    note.textContent = m.error || m.note || '';
    note.classList.toggle('error', Boolean(m.error));
    tools.replaceChildren(...(isRunning ? [] : answerTools(m)), note);
  };
  update(false);
  return {box, update};
}

function answerTools(m) {
  const copy = button('Copy', () => copyText(m.content, copy)), isLast = m === shown.messages.at(-1);
  const tools = m.content ? [copy] : [];
  tools.push(button(m.error ? 'Retry' : 'Regenerate', () => {
    stop();
    shown.messages.length = shown.messages.indexOf(m);
    show(shown);
    answer(newAnswer());
  }));
  if (isLast && m.content && m.end !== 'stop') tools.push(button('Continue', () => answer(m)));
  return tools;
}

/* --- answers --- */

const newAnswer = () => ({role: 'assistant', content: ''});

function requestBody(c, m) {
  const messages = c.messages.filter(x => x.role === 'user' || x.content).map(x => ({role: x.role, content: x.content}));
  const system = kept('system').trim(), number = name => kept(name) === '' ? undefined : Number(kept(name));
  if (system) messages.unshift({role: 'system', content: system});
  const body = {messages, stream: true, stream_options: {include_usage: true}, temperature: number('temperature'),
    top_p: number('top_p'), max_tokens: number('most'), reasoning_effort: kept('effort') || undefined};
  if (m.content) body.continue_final_message = true;
  return body;
}

/* Notes of the speed and of when thinking began and ended. */
class Clock {
  constructor() { this.begin = performance.now(); this.first = 0; this.n = 0; this.think = 0; }

  take(m, delta, usage) {
    const now = performance.now();
    if (!this.first) this.first = now;
    if (usage) this.n = usage.completion_tokens;
    else if (delta.reasoning_content || delta.content) this.n++;
    if (delta.reasoning_content && !this.think) this.think = now;
    if (this.think && delta.content && m.think_ms === undefined) m.think_ms = now - this.think;
  }

  note(usage) {
    const s = (performance.now() - this.first) / 1000;
    const speed = this.n > 1 && s > 0 ? `, ${((this.n - 1) / s).toFixed(1)} tokens/s` : '';
    if (!usage) return `${this.n} tokens${speed}`;
    const cached = usage.prompt_tokens_details ? usage.prompt_tokens_details.cached_tokens : 0;
    return `${this.n} tokens${speed}; first after ${seconds(this.first - this.begin)}, ` +
      `${usage.prompt_tokens - cached} of ${usage.prompt_tokens} tokens of the prompt computed`;
  }
}

function failureText(e) {
  if (e instanceof Refused) return e.message;
  return 'The server cannot be reached. The question and what has come of the answer are kept.';
}

/* Computes an answer, or what is missing of it, and shows it as it comes. */
async function answer(m) {
  const c = shown, clock = new Clock(), mine = running = new AbortController(), body = requestBody(c, m);
  if (!c.messages.includes(m)) c.messages.push(m);
  const {box, update} = answerBox(m);
  let usage = null, drawing = false, saved = performance.now();
  log.replaceChildren(...c.messages.slice(0, -1).map(messageBox), box);
  const draw = () => {
    drawing = false;
    if (running !== mine) return;
    const was = atEnd();
    update(true);
    if (was) toEnd();
  };
  const take = o => {
    const choice = o.choices[0], delta = choice ? choice.delta : {};
    usage = o.usage || usage;
    clock.take(m, delta, o.usage);
    m.thinking = (m.thinking || '') + (delta.reasoning_content || '');
    m.content += delta.content || '';
    if (choice && choice.finish_reason) m.end = choice.finish_reason;
    m.note = clock.note();
    if (!drawing) { drawing = true; requestAnimationFrame(draw); }
    if (performance.now() - saved > 2000) { saved = performance.now(); storePut(c).catch(() => {}); }
  };
  m.error = m.end = undefined;
  send.textContent = 'Stop';
  say('');
  await save(c);
  toEnd();
  try {
    await streamAnswer(body, mine.signal, take);
    if (usage) { m.note = clock.note(usage); m.n_context = usage.prompt_tokens + usage.completion_tokens; }
  } catch (e) {
    if (e.name === 'AbortError') { m.end = 'stopped'; m.note = clock.note() + ', stopped'; }
    else { m.end = 'error'; m.error = failureText(e); }
    if (e.status === 401) askForKey();
  }
  if (m.thinking && m.think_ms === undefined) m.think_ms = performance.now() - clock.think;
  if (running === mine) { running = null; send.textContent = 'Send'; }
  await save(c);
  if (c !== shown) return;
  update(false);
  showContext();
  say(m.error || (m.end === 'stopped' ? 'Stopped.' : 'Answered.'), Boolean(m.error));
}

function stop() {
  if (!running) return;
  running.abort();
  running = null;
  send.textContent = 'Send';
}

/* --- questions and files --- */

function submit() {
  const blocks = files.map(f => `File ${f.name}:\n\`\`\`\n${f.text.replace(/\n$/, '')}\n\`\`\``);
  const text = [...blocks, ask.value.trim()].filter(Boolean).join('\n\n');
  if (!text) return;
  const m = {role: 'user', content: text};
  shown.messages.push(m);
  ask.value = '';
  keep('draft', '');
  files = [];
  showFiles();
  answer(newAnswer());
}

async function addFiles(list) {
  for (const file of list) {
    const bytes = new Uint8Array(await file.slice(0, FILE_MOST + 1).arrayBuffer());
    try {
      if (bytes.length > FILE_MOST) throw new Error('it has more than 2 MiB');
      const text = new TextDecoder('utf-8', {fatal: true}).decode(bytes);
      if (text.includes('\0')) throw new Error('it is no text');
      files.push({name: file.name, text});
    } catch (e) {
      say(`${file.name}: ${e instanceof TypeError ? 'it is no text in UTF-8' : e.message}`, true);
    }
  }
  showFiles();
}

function showFiles() {
  $('files').replaceChildren(...files.map(f => button(`${f.name} \u2715`, () => {
    files = files.filter(x => x !== f);
    showFiles();
  })));
}

/* --- the page --- */

function askForKey() {
  $('keyrow').hidden = false;
  $('settings').open = true;
  $('key').focus();
}

async function showModel() {
  try {
    model = await fetchModel();
    if (!model) { askForKey(); return; }
    $('model').textContent = model.id;
    if (shown) showContext();
  } catch (e) {
    say(failureText(e), true);
  }
}

function listen() {
  $('form').addEventListener('submit', e => {
    e.preventDefault();
    if (running) stop(); else submit();
  });
  ask.addEventListener('keydown', e => {
    if (e.key !== 'Enter' || e.shiftKey || e.isComposing) return;
    e.preventDefault();
    if (!running) submit();
  });
  ask.addEventListener('input', () => keep('draft', ask.value));
  document.addEventListener('keydown', e => { if (e.key === 'Escape') stop(); });
  $('new').addEventListener('click', () => { show(newConversation()); ask.focus(); });
  $('show').addEventListener('click', () => document.body.classList.toggle('closed'));
  $('hide').addEventListener('click', () => document.body.classList.add('closed'));
  $('search').addEventListener('input', showList);
  $('export').addEventListener('click', exportAll);
  $('import').addEventListener('click', () => $('chosen').click());
  $('chosen').addEventListener('change', e => { if (e.target.files[0]) importFile(e.target.files[0]); e.target.value = ''; });
  for (const name of SETTINGS) {
    $(name).value = kept(name);
    $(name).addEventListener('change', () => { keep(name, $(name).value); if (name === 'key') showModel(); });
  }
  $('form').addEventListener('dragover', e => { e.preventDefault(); $('form').classList.add('drop'); });
  $('form').addEventListener('dragleave', () => $('form').classList.remove('drop'));
  $('form').addEventListener('drop', e => {
    e.preventDefault();
    $('form').classList.remove('drop');
    addFiles(e.dataTransfer.files);
  });
}

async function start() {
  listen();
  ask.value = kept('draft');
  if (matchMedia('(max-width: 40rem)').matches) document.body.classList.add('closed');
  await storeOpen();
  all = await storeAll();
  if (kept('key')) $('keyrow').hidden = false;
  show(newConversation());
  if (!store.db) say('This browser keeps no conversations: they end with the page.');
  showModel();
}
start();
