// Stands for the one module that the server takes from JSR, @std/cli/parse-args: what of it the server uses.

type Options = { string?: string[]; default?: Record<string, string> };

// deno-lint-ignore no-explicit-any
export function parseArgs(args: string[], options: Options = {}): Record<string, any> {
  // deno-lint-ignore no-explicit-any
  const found: Record<string, any> = { _: [], ...options.default };
  const left = [...args];
  while (left.length) {
    const argument = left.shift()!;
    const [named, name, value] = argument.match(/^--([^=]+)(?:=(.*))?$/s) ?? [];
    if (named === undefined) found._.push(argument);
    else found[name] = value ?? left.shift();
  }
  return found;
}
