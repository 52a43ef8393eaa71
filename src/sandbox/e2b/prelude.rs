//! Cells of our own: what is set up and taken back around callers' cells. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::sandbox::program::{NOTABLE, is_path, is_word, one_line};

/// Sets the session up in a fresh kernel and says where that is.
const SET_UP: &str = "
import importlib.metadata, json, os, pwd, platform, sys, types
os.environ.update(told['env'])
def folder():
    for path in told['folders']:
        path = os.path.expanduser(path)
        try:
            os.makedirs(path, exist_ok=True)
            if os.access(path, os.W_OK | os.X_OK):
                os.chdir(path)
                return os.path.realpath(path)
        except OSError:
            pass
    return os.getcwd()
def versions():
    for name in told['packages']:
        try:
            yield name, importlib.metadata.version(name)
        except Exception:
            pass
here = {'packages': dict(versions()), 'files_dir': folder(), 'user': pwd.getpwuid(os.geteuid()).pw_name, 'python': sys.executable or 'python3', 'version': platform.python_version()}
sys.modules['_interpreterd_set_up'] = types.ModuleType('_interpreterd_set_up')
print(told['mark'] + json.dumps(here), flush=True)
";

/// Gives one cell its environment and its standard input; what was there before is kept aside.
const LEND: &str = "
import io, os, sys, types
main = sys.modules['__main__'].__dict__
lent = types.ModuleType('_interpreterd_lent')
lent.env, lent.stdin, lent.input = {name: os.environ.get(name) for name in told['env']}, sys.stdin, None
os.environ.update(told['env'])
if told['stdin'] is not None:
    sys.stdin = io.TextIOWrapper(io.BytesIO(told['stdin'].encode('utf-8', 'surrogatepass')), encoding='utf-8')
    if 'input' not in main:
        def read_line(prompt='', /):
            sys.stdout.write(str(prompt))
            line = sys.stdin.readline()
            if not line:
                raise EOFError('EOF when reading a line')
            return line.rstrip('\\n')
        main['input'] = read_line
        lent.input = read_line
sys.modules['_interpreterd_lent'] = lent
";

/// Takes back what one cell was given, and says whether the kernel was set up at all.
const TAKE_BACK: &str = "
import os, sys
lent = sys.modules.pop('_interpreterd_lent', None)
if lent is not None:
    for name, value in lent.env.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    sys.stdin = lent.stdin
    main = sys.modules['__main__'].__dict__
    if lent.input is not None and main.get('input') is lent.input:
        del main['input']
print(told['mark'] + str('_interpreterd_set_up' in sys.modules), flush=True)
";

/// What a fresh kernel says of where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Here {
    /// The files folder, absolute.
    pub(super) files_dir: String,
    /// The user that its code is.
    pub(super) user: String,
    /// Its Python.
    pub(super) python: String,
    /// The version of its Python.
    pub(super) version: String,
    /// Some of its packages, with their versions.
    #[serde(default)]
    pub(super) packages: BTreeMap<String, String>,
}

/// A cell that sets the session up. The mark is a text that no program knows before.
pub(super) fn set_up(env: &BTreeMap<String, String>, folders: &[&str], mark: &str) -> String {
    let told = json!({"env": env, "folders": folders, "packages": NOTABLE, "mark": mark});
    one_line(SET_UP, &told)
}

/// What the set-up printed; None when that is nothing that can be.
pub(super) fn here(stdout: &str, mark: &str) -> Option<Here> {
    let told = stdout.lines().find_map(|line| line.strip_prefix(mark))?;
    let here: Here = serde_json::from_str(told).ok()?;
    let good = is_path(&here.files_dir)
        && here.files_dir.len() > 1
        && is_word(&here.user, "_-.")
        && is_word(&here.python, "/_-.+")
        && is_word(&here.version, ".+-")
        && here
            .packages
            .iter()
            .all(|(name, version)| NOTABLE.contains(&name.as_str()) && is_word(version, ".+-!_"));
    good.then_some(here)
}

/// A cell that gives the next one its environment and its standard input.
pub(super) fn lend(env: &BTreeMap<String, String>, stdin: Option<&str>) -> String {
    one_line(LEND, &json!({"env": env, "stdin": stdin}))
}

/// A cell that takes back what was lent, if anything was.
pub(super) fn take_back(mark: &str) -> String {
    one_line(TAKE_BACK, &json!({"mark": mark}))
}

/// Whether the kernel that took back what was lent is one that was set up.
pub(super) fn was_set_up(stdout: &str, mark: &str) -> bool {
    stdout.lines().any(|line| line.strip_prefix(mark) == Some("True"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_never_becomes_code() {
        let env = BTreeMap::from([("A".to_owned(), "'\n\\\"); print('x')".to_owned())]);
        let cell = lend(&env, Some("'''"));
        assert_eq!(cell.lines().count(), 1);
        assert!(!cell.contains("print"), "{cell}");
    }

    #[test]
    fn where_it_is_must_be_where_something_can_be() {
        let told = |files_dir: &str, user: &str| {
            let here = json!({"files_dir": files_dir, "user": user, "python": "/usr/bin/python3", "version": "3.13.1"});
            super::here(&format!("noise\nmark{here}\n"), "mark")
        };
        assert_eq!(told("/files", "root").map(|here| here.files_dir), Some("/files".to_owned()));
        for (files_dir, user) in [
            ("files", "root"),
            ("/", "root"),
            ("/a\nb", "root"),
            ("/files", "root:x"),
            ("/files", ""),
        ] {
            assert_eq!(told(files_dir, user), None, "{files_dir:?} {user:?}");
        }
        assert_eq!(here("{}", "mark"), None);
    }
}
