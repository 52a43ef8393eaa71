// The session's interpreter: one thing at a time, and a new worker when the old one is lost.
import { Cell } from "./cell.mjs";
import { Guest } from "./guest.mjs";

const MOST_WAITING = 64;
const COLLECT_AFTER_MS = 500;
const OPERATION_MS = 60_000;

export class Busy extends Error {}
export class NotStarted extends Error {}

export class Interpreter {
  constructor(settings) {
    this.settings = settings;
    this.guest = null;
    this.turn = Promise.resolve();
    this.waiting = 0;
    this.count = 0;
    this.cells = new Set(); // those that run or wait, in their order
    this.buffers = new Buffers();
    this.isWorking = false; // what is lost while a cell runs, or on purpose, is told by that
    this.stateLost = false; // what was lost in between is told by the next cell
  }

  // Gives the guest once it has started. A start that failed is tried again by the next call.
  async start() {
    const guest = (this.guest ??= new Guest(this.settings, (ended) => this.lost(ended)));
    try {
      await guest.ready;
      return guest;
    } catch (error) {
      throw new NotStarted(`Python did not start: ${error.message}`);
    }
  }

  lost(guest) {
    if (guest === this.guest) this.guest = null;
    if (guest.wasReady && !this.isWorking) this.stateLost = true;
    setTimeout(() => globalThis.gc?.(), COLLECT_AFTER_MS); // what the worker shared with this side is big
    this.buffers = new Buffers(); // the old worker may write into its own for a while
    if (guest.wasReady) this.start().catch(() => {}); // the next call need not wait for it
  }

  // Runs code and gives what came of it. `began` gets the cell, by which it can be stopped.
  run(asked, began) {
    const cell = new Cell(asked, this.settings.graceMs);
    const turn = this.inTurn(async () => {
      const guest = await Promise.race([this.start(), cell.stopped]);
      asked.count = ++this.count;
      if (cell.reason !== null) return cell.unrun();
      const outcome = await this.working(() => cell.run(guest, this.buffers));
      const { stateLost } = this;
      this.stateLost = false;
      return { ...outcome, state_lost: outcome.state_lost || stateLost };
    });
    this.cells.add(cell);
    began(cell);
    return turn.finally(() => this.cells.delete(cell));
  }

  // Stops the cell that runs, or else the one that would be next.
  interrupt() {
    const [cell] = this.cells;
    cell?.stop("interrupted");
    return cell !== undefined;
  }

  // Gives {answer} or {error}.
  operate(tool, given) {
    return this.inTurn(async () => {
      const guest = await this.start();
      const timer = setTimeout(() => guest.end(`${tool} did not finish in time`), OPERATION_MS);
      const answer = await guest.ask({ do: "operate", tool, given });
      clearTimeout(timer);
      return answer.lost === undefined ? answer : { error: `the interpreter was lost: ${answer.lost}` };
    });
  }

  replace() {
    return this.inTurn(async () => {
      await this.working(() => this.guest?.end("the session was reset"));
      this.stateLost = false;
      await this.start();
    });
  }

  async working(work) {
    this.isWorking = true;
    try {
      return await work();
    } finally {
      this.isWorking = false;
    }
  }

  async inTurn(work) {
    if (this.waiting > MOST_WAITING) throw new Busy(`${MOST_WAITING} calls wait already`);
    this.waiting++;
    const before = this.turn;
    let pass;
    this.turn = new Promise((resolve) => (pass = resolve));
    try {
      await before;
      return await work();
    } finally {
      this.waiting--;
      pass();
    }
  }
}

// Shared memory for output, used again by one cell after the other: V8 frees such memory late.
class Buffers {
  of(bytes) {
    if (!this.last || this.last.byteLength < bytes) this.last = new SharedArrayBuffer(bytes);
    return this.last;
  }
}
