/* stream.js - requests to the server this page came from. */
function requestHeaders() {
  const h = {'Content-Type': 'application/json'}, key = kept('key');
  if (key) h.Authorization = 'Bearer ' + key;
  return h;
}

/* An answer of the server that is no success. */
class Refused extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

/* Calls take(object) for every event of an answer. Throws Refused, AbortError or, if the server cannot be reached or is
 * gone before the answer's end, TypeError. */
async function streamAnswer(body, signal, take) {
  const reply = await fetch('v1/chat/completions', {method: 'POST', headers: requestHeaders(), body: JSON.stringify(body),
    signal});
  if (!reply.ok) throw new Refused(reply.status, await errorOf(reply));
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = '', ended = false;
  for (;;) {
    const {done, value} = await reader.read();
    if (done) break;
    held += value;
    const lines = held.split('\n');
    held = lines.pop();
    for (const line of lines) {
      if (!line.startsWith('data: ')) continue;
      if (line === 'data: [DONE]') { ended = true; continue; }
      const o = JSON.parse(line.slice(6));
      if (o.error) throw new Refused(o.error.code || 0, o.error.message);
      take(o);
    }
  }
  if (!ended) throw new TypeError('the answer has no end');
}

async function errorOf(reply) {
  try { return (await reply.json()).error.message; } catch { return `status ${reply.status}`; }
}

/* {id, max_model_len} of the model, or null: a key is missing. */
async function fetchModel() {
  const reply = await fetch('v1/models', {headers: requestHeaders()});
  if (reply.status === 401) return null;
  if (!reply.ok) throw new Refused(reply.status, await errorOf(reply));
  return (await reply.json()).data[0];
}
