/* store.js - conversations in the browser's database, settings in its local storage.
 *
 * A conversation: {id, title, named, changed, messages}. A message: {role, content} and for answers {thinking,
 * think_ms, note, end, error}. Where the browser keeps nothing they live as long as the page. */
const store = {db: null, open_error: ''};

function storeOpen() {
  return new Promise(resolve => {
    const failed = e => { store.open_error = String(e && e.message || 'no database'); resolve(); };
    let request;
    try { request = indexedDB.open('moeflux', 1); } catch (e) { failed(e); return; }
    request.onupgradeneeded = () => request.result.createObjectStore('conversations', {keyPath: 'id'});
    request.onsuccess = () => { store.db = request.result; resolve(); };
    request.onerror = () => failed(request.error);
    request.onblocked = () => failed(null);
  });
}

/* Runs one request in a transaction of its own; its result. */
function storeDo(mode, make) {
  return new Promise((resolve, reject) => {
    if (!store.db) { resolve(undefined); return; }
    const t = store.db.transaction('conversations', mode);
    const request = make(t.objectStore('conversations'));
    t.oncomplete = () => resolve(request.result);
    t.onerror = t.onabort = () => reject(t.error || request.error);
  });
}

const storeAll = async () => await storeDo('readonly', s => s.getAll()) || [];
const storePut = c => storeDo('readwrite', s => s.put(c));
const storeDelete = id => storeDo('readwrite', s => s.delete(id));

/* A value that outlives the page; '' where none is kept. The key for the server outlives only the tab. */
function kept(name) {
  try { return (name === 'key' ? sessionStorage : localStorage).getItem('moeflux.' + name) || ''; } catch { return ''; }
}
function keep(name, value) {
  try { (name === 'key' ? sessionStorage : localStorage).setItem('moeflux.' + name, value); } catch { /* not kept */ }
}

function newConversation() {
  const id = Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
  return {id, title: 'New chat', named: false, changed: Date.now(), messages: []};
}

/* Conversations of an exported text, with ids of their own. Throws what is wrong with it. */
function readExport(text) {
  const all = JSON.parse(text).conversations;
  const good = m => m && (m.role === 'user' || m.role === 'assistant') && typeof m.content === 'string';
  if (!Array.isArray(all) || !all.every(c => c && Array.isArray(c.messages) && c.messages.every(good)))
    throw new Error('it is no export of this page');
  return all.map(c => ({...newConversation(), title: String(c.title || 'Imported'), named: true,
    changed: Number(c.changed) || Date.now(), messages: c.messages}));
}
