// The connection to the process: its news, and what the owner asks of it.

const TOKEN = "token";
const fragment = new URLSearchParams(location.hash.slice(1));
if (fragment.has(TOKEN)) {
  sessionStorage.setItem(TOKEN, fragment.get(TOKEN));
  history.replaceState(null, "", location.pathname);
}

addEventListener("hashchange", () => { if (location.hash.includes(`${TOKEN}=`)) location.reload(); });

// An ingress, which knows who asks, gets the token with the page. Its site is not ours: nothing is kept there.
const given = document.querySelector(`meta[name="${TOKEN}"]`).content;
const known = () => given || sessionStorage.getItem(TOKEN);

/** Whether the owner opened this page with the token. */
export const mayAct = () => known() !== null;

function headers(more = {}) {
  const token = known();
  return token === null ? more : { Authorization: `Bearer ${token}`, ...more };
}

async function read(answer) {
  const content = await answer.json().catch(() => ({ error: `the page answers ${answer.status}` }));
  if (!answer.ok || content.error) throw new Error(content.error ?? `the page answers ${answer.status}`);
  return content;
}

/** Follow the news for ever: take(message) for each, tell(state, text) when the connection changes. */
export async function follow(take, tell) {
  let pause = 1000;
  for (;;) {
    try {
      const answer = await fetch("events", { headers: headers(), cache: "no-store" });
      if (!answer.ok) {
        if (answer.status === 401) sessionStorage.removeItem(TOKEN);
        await read(answer);
      }
      tell("good", "live");
      pause = 1000;
      await readEvents(answer.body, take);
      tell("bad", "the connection ended; trying again");
    } catch (error) {
      const network = error instanceof TypeError;
      tell("bad", network ? "no answer; trying again" : error.message);
    }
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(2 * pause, 15000);
  }
}

async function readEvents(body, take) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) if (event.startsWith("data: ")) take(JSON.parse(event.slice(6)));
  }
}

/** The answer of the process to a request; an Error with its sentence where it refuses. */
export async function act(ask) {
  const body = JSON.stringify(ask);
  const type = { "Content-Type": "application/json" };
  return read(await fetch("act", { method: "POST", headers: headers(type), body }));
}
