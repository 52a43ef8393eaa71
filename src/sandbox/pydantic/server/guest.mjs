// One worker with its Python, seen from outside: all that it says is checked here before anybody uses it.

const BOOT_MS = 180_000;
const MOST_OUTCOME = 64 << 20;
const MOST_LATE = 64 << 10;
const MOST_PACKAGES = 2_000;
const MOST_NAME = 200;

const isText = (value, most) => typeof value === "string" && value.length <= most;

export class Guest {
  // `ended` is called once, when the worker is no more.
  constructor(settings, ended) {
    this.ended = ended;
    this.asked = null; // the one request that is under way: {id, hear, settle}
    this.ids = 0;
    this.over = false;
    this.wasReady = false;
    this.interrupt = new Uint8Array(new SharedArrayBuffer(1));
    this.worker = new Worker(new URL("./worker.mjs", import.meta.url), { type: "module", name: "python" });
    this.ready = new Promise((resolve, reject) => Object.assign(this, { resolve, reject }));
    this.ready.catch(() => {}); // who needs it hears of it
    this.bootTimer = setTimeout(() => this.end("Python did not start in time"), BOOT_MS);
    this.worker.onmessage = ({ data }) => this.over || this.hear(data);
    this.worker.onmessageerror = () => this.end("the worker's message cannot be read");
    this.worker.onerror = (event) => {
      event.preventDefault(); // else it ends this process too
      this.end(`the worker failed: ${event.message}`);
    };
    this.worker.postMessage({ do: "setUp", settings, interruptBuffer: this.interrupt.buffer });
  }

  hear(message) {
    if (message === null || typeof message !== "object") return;
    if (message.is === "ready") this.begin(message);
    else if (message.is === "failed") this.end(String(message.why).slice(0, 4_000));
    else if (this.asked && message.id === this.asked.id) this.answer(message);
  }

  begin({ cold, pyodide, python, packages }) {
    clearTimeout(this.bootTimer);
    this.wasReady = true;
    const held = packages && typeof packages === "object"
      ? Object.entries(packages).slice(0, MOST_PACKAGES)
      : [];
    this.about = {
      cold: cold === true,
      pyodide: isText(pyodide, MOST_NAME) ? pyodide : "",
      python: isText(python, MOST_NAME) ? python : "",
      packages: Object.fromEntries(
        held.filter(([name, version]) => isText(name, MOST_NAME) && isText(version, MOST_NAME)),
      ),
    };
    this.resolve();
  }

  answer(message) {
    const { is } = message;
    if (is === "printed" || is === "begun" || is === "started") this.asked.hear(is);
    else if (is === "broken") this.end(String(message.why).slice(0, 4_000));
    else if (is === "answer") {
      this.settle(isText(message.error, 8_000) ? { error: message.error } : { answer: message.answer });
    } else if (is === "done") this.done(message);
  }

  done({ outcome, packages, late, loadMs }) {
    const isList = Array.isArray(packages) && packages.length <= MOST_PACKAGES &&
      packages.every((name) => isText(name, MOST_NAME));
    if (!isText(outcome, MOST_OUTCOME) || !isList || typeof late !== "string") {
      return this.end("the worker's answer is none");
    }
    this.settle({
      outcome,
      packages,
      late: late.slice(0, MOST_LATE),
      loadMs: Math.max(0, Number(loadMs) || 0),
    });
  }

  // Asks the one thing at a time; `hear` gets what comes before the answer. Gives {lost: why} when the worker ends.
  ask(message, hear = () => {}) {
    return new Promise((settle) => {
      if (this.over) return settle({ lost: "it has ended" });
      this.asked = { id: ++this.ids, hear, settle };
      this.worker.postMessage({ ...message, id: this.asked.id });
    });
  }

  settle(answer) {
    const { settle } = this.asked;
    this.asked = null;
    settle(answer);
  }

  // Busy code sees the byte, idle code is cancelled by the message: both are needed.
  strike() {
    this.interrupt[0] = 2;
    if (!this.over && this.asked) this.worker.postMessage({ do: "cancel", id: this.asked.id });
  }

  end(why) {
    if (this.over) return;
    this.over = true;
    clearTimeout(this.bootTimer);
    this.worker.terminate();
    this.reject(new Error(why));
    if (this.asked) this.settle({ lost: why });
    this.ended(this);
  }
}
