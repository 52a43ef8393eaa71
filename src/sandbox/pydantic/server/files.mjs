// The operations behind the tools of files and packages.

const NO_SPACE = 51;
const IS_FOLDER = 31;
const MOST_LISTED = 10_000;
const REASONS = {
  2: "permission denied",
  20: "file exists",
  31: "is a directory",
  44: "no such file or directory",
  51: "no space left",
  54: "not a directory",
  63: "not permitted",
};

export class FileTools {
  constructor(python, most, memory, lock, quiet) {
    Object.assign(this, { python, most, memory, lock, quiet, FS: python.FS });
    this.imports = Object.values(lock.packages).flatMap((about) => about.imports);
  }

  upload({ path, data, append }) {
    const { FS } = this;
    const before = append && FS.analyzePath(path).exists ? FS.stat(path).size : 0;
    if (before + data.length > this.most) throw new FS.ErrnoError(NO_SPACE);
    FS.mkdirTree(path.slice(0, path.lastIndexOf("/")) || "/");
    const stream = FS.open(path, append ? "a" : "w");
    try {
      for (let done = 0; done < data.length;) done += FS.write(stream, data, done, data.length - done);
    } finally {
      FS.close(stream);
    }
    return { path, size: FS.stat(path).size };
  }

  download({ path, offset, length }) {
    const { FS } = this;
    const about = FS.stat(path);
    if (FS.isDir(about.mode)) throw new FS.ErrnoError(IS_FOLDER);
    const data = new Uint8Array(Math.max(0, Math.min(length, about.size - offset)));
    const stream = FS.open(path, "r");
    let done = 0;
    try {
      while (done < data.length) {
        const got = FS.read(stream, data, done, data.length - done, offset + done);
        if (got <= 0) break;
        done += got;
      }
    } finally {
      FS.close(stream);
    }
    return { size: about.size, data: data.slice(0, done) };
  }

  list({ path }) {
    const { FS } = this;
    const files = [];
    const folders = [path];
    while (folders.length > 0 && files.length < MOST_LISTED) {
      const folder = folders.pop();
      for (const name of FS.readdir(folder)) {
        if (name === "." || name === "..") continue;
        const child = `${folder}/${name}`;
        const about = this.about(child);
        if (about && FS.isDir(about.mode)) folders.push(child);
        else if (about && FS.isFile(about.mode)) {
          files.push({ path: child, size: about.size, modified: about.mtime.getTime() / 1000 });
        }
      }
    }
    return { files: files.slice(0, MOST_LISTED) };
  }

  about(path) {
    try {
      return this.FS.lstat(path);
    } catch {
      return null; // it is gone again, or a link that leads nowhere
    }
  }

  remove({ path }) {
    this.FS.unlink(path);
    return { path };
  }

  // The packages of the store that a cell's imports name, loaded if they are not yet.
  async loadFor(code) {
    if (!this.imports.some((name) => code.includes(name))) return [];
    try {
      return await this.loaded(() => this.python.loadPackagesFromImports(code, this.quiet));
    } catch {
      return []; // an earlier cell has spoilt what this needs: then imports say what they miss
    }
  }

  // Programs can call this with any name; what is no name of the store could be an address.
  async loadOne(name) {
    if (!Object.values(this.lock.packages).some((about) => about.name === name)) return [];
    return await this.loaded(() => this.python.loadPackage([name], this.quiet));
  }

  async loaded(load) {
    const packages = await this.memory.uncounted(load);
    return packages.map((about) => about.name);
  }

  async load({ names }) {
    const errors = [];
    const known = names.filter((name) => {
      const held = Object.hasOwn(this.lock.packages, name.toLowerCase().replace(/[-_.]+/g, "-")) ||
        Object.hasOwn(this.lock.packages, name);
      if (!held) errors.push(`${name}: the store does not have it, and packages cannot be fetched here`);
      return held;
    });
    const told = { messageCallback() {}, errorCallback: (message) => errors.push(String(message)) };
    const loaded = await this.memory.uncounted(() => this.python.loadPackage(known, told));
    return { loaded: loaded.map((about) => `${about.name}==${about.version}`), errors };
  }

  reason(error) {
    if (error?.errno !== undefined) return REASONS[error.errno] ?? `error ${error.errno}`;
    return String(error?.message ?? error).slice(0, 4000);
  }
}
