// One cell: its deadline, its interruption, and what came of it.
import { lostOutcome, outcomeOf, unrunOutcome } from "./outcome.mjs";
import { bytesFor, Follower, Output } from "./stream.mjs";

const STRIKE_EVERY_MS = 100;
const AWAKE_WITHIN_MS = 500;
const PACKAGES_WITHIN_MS = 120_000;

export class Cell {
  // `asked` holds code, globals, session_env, env, stdin, count; limit, timeoutMs; `tell` for what is printed.
  constructor(asked, graceMs) {
    this.asked = asked;
    this.graceMs = graceMs;
    this.reason = null;
    this.running = false;
    this.stopped = new Promise((resolve) => (this.wake = resolve));
  }

  stop(reason) {
    if (this.reason !== null) return;
    this.reason = reason;
    this.wake();
    if (this.running) this.strikeUntilDone();
  }

  async run(guest, buffers) {
    this.guest = guest;
    const { tell, limit, timeoutMs, ...cell } = this.asked;
    this.timeoutMs = timeoutMs;
    const buffer = buffers.of(bytesFor(limit));
    const output = new Output(buffer, limit);
    output.clear();
    this.follower = new Follower(output, tell);
    this.awaitWaking();
    const answer = await guest.ask({ do: "run", cell, buffer, limit }, (what) => this.hear(what));
    const ms = this.running ? performance.now() - this.startedAt : 0;
    this.running = false;
    this.clearTimers();
    this.follower.drain();
    return this.outcome(answer, output, ms);
  }

  // What came of a cell that was stopped before its turn.
  unrun() {
    const nothing = { head: new Uint8Array(), tail: new Uint8Array(), bytes: 0 };
    const { count } = this.asked;
    return {
      ...unrunOutcome(),
      count,
      ms: 0,
      stdout: nothing,
      stderr: nothing,
      late: "",
      reason: this.reason,
      packages: [],
    };
  }

  outcome(answer, output, ms) {
    let came = answer.lost === undefined ? outcomeOf(answer.outcome) : lostOutcome(answer.lost);
    if (came === null) {
      this.guest.end("the worker's outcome is none");
      came = lostOutcome("its outcome cannot be read");
    }
    if (this.reason !== null) came.exit_code = 1;
    const [stdout, stderr] = [0, 1].map((which) => output.ends(which));
    const { packages = [], late = "", loadMs = 0 } = answer;
    return {
      ...came,
      count: this.asked.count,
      ms: Math.max(0, ms - loadMs),
      stdout,
      stderr,
      late,
      reason: this.reason,
      packages,
    };
  }

  hear(what) {
    if (what === "printed") return this.follower.wake();
    this.clearTimers();
    if (what === "begun") {
      return this.after(PACKAGES_WITHIN_MS, () => this.guest.end("the packages did not load in time"));
    }
    this.running = true;
    this.startedAt = performance.now();
    if (this.reason !== null) return this.strikeUntilDone();
    this.after(this.timeoutMs, () => this.stop("timeout"));
  }

  // A task that an earlier cell left behind may keep the worker busy: that is not this cell's fault,
  // and it is struck.
  awaitWaking() {
    this.after(AWAKE_WITHIN_MS, () => this.strikeUntilDone());
  }

  strikeUntilDone() {
    this.clearTimers();
    this.guest.strike();
    this.striking = setInterval(() => this.guest.strike(), STRIKE_EVERY_MS);
    this.after(this.graceMs, () => this.guest.end("it did not stop when it was interrupted"));
  }

  after(ms, act) {
    this.timer = setTimeout(act, ms);
  }

  clearTimers() {
    clearTimeout(this.timer);
    clearInterval(this.striking);
  }
}
