// What a cell prints: in shared memory, so that it is not lost with the worker, bounded whatever is printed.
//
// Of each stream the first `limit` bytes stand in a line, which is streamed; what comes after goes round
// in a ring that holds the last bytes. Both streams' lines and rings follow each other in one buffer.

export const STREAMS = ["stdout", "stderr"];
const MOST_AT_ONCE = 64 << 10;
const EVERY_MS = 50;
const HEADER_BYTES = 64; // as Int32: awake, lengths of both lines; from 16 on as Float64: both totals

export const bytesFor = (limit) => HEADER_BYTES + 2 * (limit + ringBytes(limit));
const ringBytes = (limit) => limit - (limit >> 1);

// The view of one cell's output, which both sides have.
export class Output {
  constructor(buffer, limit) {
    this.limit = limit;
    this.state = new Int32Array(buffer, 0, 4);
    this.totals = new Float64Array(buffer, 16, 2);
    const size = limit + ringBytes(limit);
    this.lines = [0, 1].map((i) => new Uint8Array(buffer, HEADER_BYTES + i * size, limit));
    this.rings = [0, 1].map((i) => new Uint8Array(buffer, HEADER_BYTES + i * size + limit, ringBytes(limit)));
  }

  clear() {
    this.state.fill(0);
    this.totals.fill(0);
  }

  // Worker: takes bytes of wasm's memory, which must be copied at once. True when the reader must be woken.
  write(which, bytes) {
    const total = this.totals[which];
    const room = Math.max(0, this.limit - total);
    if (room > 0) {
      const first = bytes.subarray(0, room);
      this.lines[which].set(first, total);
      Atomics.store(this.state, 1 + which, total + first.length);
    }
    if (bytes.length > room) this.goRound(this.rings[which], bytes.subarray(room), total + room);
    this.totals[which] = total + bytes.length;
    return room > 0 && Atomics.exchange(this.state, 0, 1) === 0;
  }

  goRound(ring, bytes, position) {
    if (ring.length === 0) return;
    const skipped = Math.max(0, bytes.length - ring.length);
    const last = bytes.subarray(skipped);
    const start = (position + skipped) % ring.length;
    const straight = last.subarray(0, ring.length - start);
    ring.set(straight, start);
    ring.set(last.subarray(straight.length), 0);
  }

  // Main: from here on a write wakes us again.
  sleep() {
    Atomics.store(this.state, 0, 0);
  }

  // Main: the bytes of a line from `start` on, as a copy that decoders take.
  since(which, start) {
    const end = Math.min(this.limit, Atomics.load(this.state, 1 + which));
    return this.lines[which].slice(start, Math.max(start, Math.min(end, start + MOST_AT_ONCE)));
  }

  // Main, after the cell: head, tail and length.
  ends(which) {
    const said = this.totals[which];
    const total = Number.isSafeInteger(said) && said > 0 ? said : 0;
    if (total <= this.limit) {
      return { head: this.lines[which].slice(0, total), tail: new Uint8Array(), bytes: total };
    }
    const ring = this.rings[which];
    const tail = new Uint8Array(ring.length);
    const fromLine = Math.max(0, this.limit - (total - ring.length));
    tail.set(this.lines[which].subarray(this.limit - fromLine));
    const start = (total - (ring.length - fromLine)) % ring.length;
    const round = ring.length - fromLine;
    const straight = ring.subarray(start, Math.min(ring.length, start + round));
    tail.set(straight, fromLine);
    tail.set(ring.subarray(0, round - straight.length), fromLine + straight.length);
    return { head: this.lines[which].slice(0, this.limit >> 1), tail, bytes: total };
  }
}

// Sends what comes on, at most 20 times a second.
export class Follower {
  constructor(output, tell) {
    this.output = output;
    this.tell = tell;
    this.sent = [0, 0];
    this.decoders = STREAMS.map(() => new TextDecoder());
    this.last = 0;
    this.timer = null;
  }

  wake() {
    if (this.timer !== null) return;
    const wait = this.last + EVERY_MS - performance.now();
    if (wait <= 0) this.drain();
    else this.timer = setTimeout(() => this.drain(), wait);
  }

  drain() {
    clearTimeout(this.timer);
    this.timer = null;
    this.last = performance.now();
    this.output.sleep();
    for (const which of [0, 1]) {
      for (let bytes; (bytes = this.output.since(which, this.sent[which])).length > 0;) {
        this.sent[which] += bytes.length;
        this.tell(STREAMS[which], this.decoders[which].decode(bytes, { stream: true }), bytes);
      }
    }
  }
}
