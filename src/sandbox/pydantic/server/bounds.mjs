// The bounds of files: of those that are held in memory, and of the host's folder.

const NO_SPACE = 51;
const NOT_PERMITTED = 63;
const INVALID = 28;
const TRY_AGAIN = 6;
const MOST_IN_PIPE = 256 << 10;
const MOST_NODES = 200_000;
const GARBAGE_BYTES = 64 << 20;

// Bounds the file system that is held in memory, by bytes and number of entries.
export class MemoryBound {
  constructor(python, most) {
    this.FS = python._module.FS;
    this.most = most;
    this.garbage = 0;
    this.recount();
    this.own = this.used; // Python's library and the packages, which are not the session's
    this.watch(this.FS.filesystems.MEMFS);
  }

  watch(memory) {
    const { stream, node } = memory.ops_table.file;
    const { write } = stream;
    stream.write = (file, buffer, offset, length, position, canOwn) =>
      this.grown(file.node, position + length, () => write(file, buffer, offset, length, position, canOwn));
    const { setattr } = node;
    node.setattr = (file, change) => this.grown(file, change.size ?? 0, () => setattr(file, change));
    const { createNode } = memory;
    memory.createNode = (...given) => {
      if (this.nodes >= MOST_NODES) this.recount();
      if (this.nodes >= MOST_NODES) throw new this.FS.ErrnoError(NO_SPACE);
      this.nodes++;
      return createNode(...given);
    };
  }

  // Lets an operation make a file grow, or refuses it.
  grown(file, size, operation) {
    const before = file.contents.length;
    const more = size - before;
    if (more > 0 && this.used + more > this.own + this.most) {
      this.recount(); // files may have been removed
      if (this.used + more > this.own + this.most) throw new this.FS.ErrnoError(NO_SPACE);
    }
    const result = operation();
    const after = file.contents.length;
    this.used += after - before;
    if (after !== before) this.collect(before);
    return result;
  }

  // Each growth leaves a copy behind: without this the process grew to 1.9 GB.
  collect(left) {
    this.garbage += left;
    if (this.garbage < GARBAGE_BYTES) return;
    this.garbage = 0;
    globalThis.gc?.();
  }

  // Counts what the tree holds, and the files that are removed but still open.
  recount() {
    const seen = new Set([this.FS.root]);
    for (const stream of this.FS.streams) if (stream?.node) seen.add(stream.node);
    let bytes = 0;
    for (const node of seen) {
      const { contents } = node;
      if (ArrayBuffer.isView(contents)) bytes += contents.length;
      else if (contents && this.FS.isDir(node.mode)) {
        for (const child of Object.values(contents)) seen.add(child);
      }
    }
    this.nodes = seen.size;
    this.used = bytes;
  }

  // What a package brings does not count.
  async uncounted(load) {
    const { most } = this;
    this.recount();
    const before = this.used;
    this.most = Infinity;
    try {
      return await load();
    } finally {
      this.most = most;
      this.recount();
      this.own += this.used - before;
    }
  }
}

// Bounds what a pipe holds that nobody reads: it would grow for ever.
export function boundPipes(python) {
  const { FS } = python._module;
  const ends = python.runPython("__import__('os').pipe()");
  const streams = [...ends].map((number) => FS.getStream(number));
  ends.destroy?.();
  const { stream_ops: operations } = streams[0];
  const { write } = operations;
  operations.write = (stream, buffer, offset, length, position) => {
    const held = stream.node.pipe.buckets.reduce((sum, bucket) => sum + bucket.offset - bucket.roffset, 0);
    if (held + length > MOST_IN_PIPE) throw new FS.ErrnoError(TRY_AGAIN);
    return write(stream, buffer, offset, length, position);
  };
  for (const stream of streams) FS.close(stream);
}

// Emscripten's terminals read this process's stdin, and so would steal the protocol's messages:
// they become /dev/null.
export function silenceTerminals(python) {
  const { FS } = python._module;
  const { stream_ops: nothing } = FS.getDevice(FS.makedev(1, 3));
  for (const major of [5, 6]) FS.registerDevice(FS.makedev(major, 0), nothing);
}

// Lays a folder of the host at /files, within a bound of our own: a watchdog outside is the second wall.
export function mountFolder(python, folder, most) {
  python.mountNodeFS("/files", folder);
  const { FS } = python._module;
  const host = FS.filesystems.NODEFS;
  const room = new Room(folder, most);
  soften(FS, host);

  const { write } = host.stream_ops;
  host.stream_ops.write = (stream, buffer, offset, length, position) => {
    room.take(FS, position + length - host.stream_ops.getattr(stream).size);
    return write(stream, buffer, offset, length, position);
  };
  for (const operations of [host.node_ops, host.stream_ops]) {
    const { setattr } = operations;
    operations.setattr = (file, change) => {
      if (change.size !== undefined) room.take(FS, change.size - operations.getattr(file).size);
      return setattr(file, change);
    };
  }
}

// A refusal by Deno must be an OSError of Python's, not the end of the interpreter.
function soften(FS, host) {
  const errorOf = (error) => {
    if (error?.name === "ErrnoError") return error;
    if (error?.code === "UNKNOWN") return new FS.ErrnoError(INVALID);
    if (error?.code && error.name !== "NotCapable") return new FS.ErrnoError(host.convertNodeCode(error));
    return new FS.ErrnoError(NOT_PERMITTED);
  };
  const softly = (operation) => (...given) => {
    try {
      return operation.apply(host, given);
    } catch (error) {
      throw errorOf(error);
    }
  };
  host.tryFSOperation = softly((operation) => operation());
  for (const operations of [host.node_ops, host.stream_ops]) {
    for (const [name, operation] of Object.entries(operations)) operations[name] = softly(operation);
  }
}

// How much of a folder's bound is left. It walks the folder only when much was written since.
class Room {
  constructor(folder, most) {
    this.folder = folder;
    this.most = most;
    this.used = Infinity;
    this.grown = 0;
    this.walked = -Infinity;
    this.rest = 0;
  }

  take(FS, bytes) {
    if (bytes <= 0) return;
    const stale = this.grown + bytes > this.most / 16 || this.used + bytes > this.most;
    if (stale && performance.now() - this.walked > this.rest) this.walk();
    if (this.used + bytes > this.most) throw new FS.ErrnoError(NO_SPACE);
    this.used += bytes;
    this.grown += bytes;
  }

  walk() {
    const began = performance.now();
    this.used = bytesIn(this.folder);
    this.grown = 0;
    this.walked = performance.now();
    this.rest = 3 * (this.walked - began); // walks take a quarter of the time at most
  }
}

function bytesIn(folder) {
  let sum = 0;
  const folders = [folder];
  while (folders.length > 0) {
    const here = folders.pop();
    try {
      for (const entry of Deno.readDirSync(here)) {
        const path = `${here}/${entry.name}`;
        if (entry.isDirectory) folders.push(path);
        else if (entry.isFile) sum += Deno.lstatSync(path).size;
      }
    } catch {
      // it is gone again
    }
  }
  return sum;
}
