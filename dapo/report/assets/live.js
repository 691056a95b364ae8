// News from the server: one question every two seconds while somebody looks, fewer while nothing happens.

const POLL = {
  least: 2000, // milliseconds between an answer and the next question
  running: 4000, // most, while a run goes on and nothing is new
  most: 15000, // most, when all has ended or the server is gone
  share: 4, // an answer that took t, with its drawing, is followed by 4 t of rest, at most `most`
  patience: 120000, // milliseconds until a question without an answer is given up
};

const PART = 200; // groups or prompts in one answer

/** An error that the server explained. */
class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.name = "Refused";
    this.status = status;
  }
}

/** Ask the server; the answer is {status, tag, content}, where 304 has no content. */
async function askServer(address, tag) {
  const headers = tag ? { "If-None-Match": tag } : {};
  const signal = AbortSignal.timeout(POLL.patience);
  const response = await fetch(address, { headers, signal, cache: "no-store", credentials: "omit" });
  if (response.status === 304) return { status: 304, tag, content: null };
  if (!response.ok) {
    const content = await response.json().catch(() => null); // a proxy of a tunnel may answer in its own words
    throw new Refused(response.status, (content && content.error) || `the server said ${response.status}`);
  }
  return { status: response.status, tag: response.headers.get("etag"), content: await response.json() };
}

function clock(date) {
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map((n) => String(n).padStart(2, "0")).join(":");
}

/** Ask again and again, while the page can be seen.
 *
 * `news(content)` is called with each new answer, and returns "more" where another is to be had at once. `stands({at, lost, why})` after each question: when the last answer
 * came, since when none comes (null: all is well) and why. `goesOn()` says whether something can be expected to change.
 */
function poller(address, news, stands, goesOn) {
  let tag = null;
  let wait = POLL.least;
  let timer = 0;
  let asking = false;
  let at = null;
  let lost = null;
  let again = false;

  async function tell(content) {
    try {
      if ((await news(content)) === "more") again = true;
    } catch (error) {
      reportError(error); // a fault of the page, not of the connection; it must not end the asking
    }
  }

  async function ask() {
    clearTimeout(timer);
    if (asking) {
      again = true;
      return;
    }
    asking = true;
    const began = performance.now();
    let why = "";
    try {
      const answer = await askServer(address, tag);
      at = new Date();
      lost = null;
      if (answer.status !== 304) {
        tag = answer.tag;
        wait = POLL.least;
        await tell(answer.content);
      } else wait = Math.min(wait * 1.25, goesOn() ? POLL.running : POLL.most);
    } catch (error) {
      if (error instanceof Refused) {
        at = new Date(); // there is a connection, and the server says what is wrong
        lost = null;
      } else lost = lost || at || new Date();
      why = error.message;
      tag = null; // what was asked meanwhile failed too: when all is well again, everything is drawn anew
      wait = Math.min(wait * 1.5, POLL.most);
    }
    asking = false;
    stands({ at, lost, why });
    const pause = again ? 0 : Math.min(POLL.most, Math.max(wait, POLL.share * (performance.now() - began)));
    again = false;
    if (!document.hidden) timer = setTimeout(ask, pause);
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (!document.hidden) {
      wait = POLL.least;
      ask();
    }
  });
  addEventListener("online", ask);
  return { ask, known: (first) => (tag = first), later: () => (timer = setTimeout(ask, wait)) };
}

/** Whether a page is in touch with its server, in words and a dot. `ended`: nothing more is to be expected. */
function touch(root) {
  const text = html`<span>asking the server ...</span>`;
  root.classList.add("live-state");
  put(root, html`<span class="live-dot" aria-hidden="true" />`, text);
  return ({ at, lost, why }, ended) => {
    const state = lost ? "lost" : why ? "refused" : ended ? "ended" : "live";
    const said = {
      lost: () => `No connection since ${clock(lost)}: what you see is as of then. Asking again.`,
      refused: () => `${why.charAt(0).toUpperCase()}${why.slice(1)}.`,
      ended: () => "up to date",
      live: () => "live",
    }[state]();
    root.dataset.state = state;
    // a screen reader says what changes, so nothing is written that stands there already
    if (text.textContent !== said) text.textContent = said;
    root.title = at ? `Last answer at ${clock(at)}` : "";
  };
}

/** A link within this server. */
function linkTo(address, attributes, ...children) {
  const node = el("a", attributes, ...children);
  if (!/^\/(?!\/)/.test(address)) throw new Error("a link must stay on this server");
  node.setAttribute("href", address);
  return node;
}

function addressOfRun(name) {
  return `/run/${name.split("/").map(encodeURIComponent).join("/")}`;
}

/** The source of a page that a server made; see page.py. Labels of runs are the page's, names are the server's. */
function liveSource(live, page) {
  const compared = location.pathname === "/compare" ? new URLSearchParams(location.search).getAll("run") : [];
  const names = compared.length ? [...new Set(compared)] : [live.run];
  const labels = new Map();
  const query = (entries) => {
    const given = Object.entries(entries).filter(([, value]) => value !== null && value !== undefined && value !== "");
    return new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
  };
  const address = `${live.api}bundle?${names.map((name) => query({ run: name })).join("&")}`;
  let goesOn = true;

  const learn = (bundle) => {
    bundle.runs.forEach((run, i) => labels.set(run.label, names[i]));
    goesOn = bundle.runs.some((run) => run.status.state === "running");
    return bundle;
  };
  const ask = async (path, entries) => {
    const run = labels.get(entries.run) || entries.run || names[0];
    try {
      return (await askServer(`${live.api}${path}?${query({ ...entries, run })}`)).content;
    } catch (error) {
      throw error instanceof Refused ? error : new Error("no connection to the server");
    }
  };

  /** A list may be asked for in one piece that the server gives in several. */
  const inParts = async (path, entries) => {
    const wanted = entries.limit || 0;
    const offset = entries.offset || 0;
    const first = await ask(path, { ...entries, limit: Math.min(PART, wanted) || null });
    const found = first[path];
    while (found.length < Math.min(wanted, first.total - offset)) {
      const next = await ask(path, { ...entries, offset: offset + found.length, limit: Math.min(PART, wanted - found.length) });
      if (!next[path].length) break;
      found.push(...next[path]);
    }
    return { ...first, [path]: found };
  };

  const singles = names.length > 1 ? names.map((name) => linkTo(addressOfRun(name), {}, oneLine(name, 40))) : [];
  const trace = linkTo(`${live.api}trace?${names.map((name) => query({ run: name })).join("&")}`,
    { title: "Where the time went, as a file; open it at ui.perfetto.dev" }, "trace.json");
  document.querySelector(".skip").after(html`
    <nav class="live-line" aria-label="This server">
      ${live.alone ? null : linkTo("/", {}, "All runs")}${singles}${trace}
    </nav>`);
  const stands = touch(page.freshness);
  const show = (how) => stands(how, !goesOn);
  const waiting = document.getElementById("loading");
  const asking = poller(address, (bundle) => page.update(learn(bundle)), show, () => goesOn);

  return {
    /** The first bundle; waits for a server that is away. What follows comes by `page.update`. */
    async bundle() {
      for (let since = null; ; ) {
        try {
          const answer = await askServer(address);
          asking.known(answer.tag);
          asking.later();
          learn(answer.content);
          show({ at: new Date(), lost: null, why: "" });
          return answer.content;
        } catch (error) {
          if (error instanceof Refused && error.status < 500) {
            show({ at: new Date(), lost: null, why: error.message });
            throw error;
          }
          since = error instanceof Refused ? null : since || new Date();
          show({ at: null, lost: since, why: error.message });
          if (waiting) waiting.textContent = since ? `No connection since ${clock(since)}. Asking again.` : `${error.message}. Asking again.`;
          await new Promise((done) => setTimeout(done, POLL.least));
        }
      }
    },
    groups: (entries) => inParts("groups", entries),
    group: (run, step, group) => ask("group", { run, step, group }),
    prompts: (entries) => inParts("prompts", entries),
    prompt: (run, id) => ask("prompt", { run, id }),
  };
}
