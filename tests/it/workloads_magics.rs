//! Shell commands and magics, as notebooks use them.

use serde_json::json;

use crate::support::told::{each, shell, tells};

#[tokio::test]
async fn shell_lines_give_their_output_and_take_variables() {
    assert_eq!(
        each([
            "name = 'a b'\n!echo \"hello {name}\" $name; echo error >&2; exit 3",
            "_exit_code",
            "lines = !printf 'x\\ny\\n'\nlines",
            "for n in range(2):\n    !echo {n}",
            "!!echo both",
        ])
        .await,
        json!([
            {"stdout": "hello a b a b\n", "stderr": "error\n"},
            {"value": "3"},
            {"value": "['x', 'y']"},
            {"stdout": "0\n1\n"},
            {"value": "['both']"}
        ])
    );
}

#[tokio::test]
async fn every_script_cell_prints_into_its_own_output() {
    assert_eq!(
        each([
            "%%bash\necho one; echo error >&2\nfor i in 1 2; do echo $i; done",
            "%%bash\necho two",
            "%%sh\necho three",
            "%%python\nprint('four')",
            "%%script bash\necho five",
            "%%bash --out text\necho six",
            "text",
            "%%bash\nsleep 0.05 &\necho seven",
            "import threading; threading.active_count()",
        ])
        .await,
        json!([
            {"stdout": "one\n1\n2\n", "stderr": "error\n"},
            {"stdout": "two\n"},
            {"stdout": "three\n"},
            {"stdout": "four\n"},
            {"stdout": "five\n"},
            {},
            {"value": "'six\\n'"},
            {"stdout": "seven\n"},
            {"value": "1"}
        ])
    );
    assert_eq!(
        tells("%%bash\necho before\nexit 3").await,
        json!({
            "stdout": "before\n",
            "error": ["CalledProcessError", "Command 'b'echo before\\nexit 3\\n'' returned non-zero exit status 3."],
            "exit_code": 1
        })
    );
}

#[tokio::test]
async fn timing_magics_work() {
    assert_eq!(
        each([
            "%%capture spent\n%time print(1 + 1)",
            "import re\nprint(re.sub(r'[\\d.]+ ([num]?s)\\b', 'T', spent.stdout))",
            "%%capture spent\n%%time\nx = 5\nx",
            "x, spent.outputs[0].data",
            "%%capture spent\n%%timeit -n 10 -r 2 numbers = range(10)\nsum(numbers)",
            "'per loop' in spent.stdout",
            "best = %timeit -n 10 -r 2 -o -q sum(range(10))\nbest.loops, best.best < 1",
        ])
        .await,
        json!([
            {},
            {
                "stdout": "2\nCPU times: user T, sys: T, total: T\nWall time: T\n\n"
            },
            {},
            {"value": "(5, {'text/plain': '5'})"},
            {},
            {"value": "True"},
            {"value": "(10, True)"}
        ])
    );
}

#[tokio::test]
async fn files_and_modules_are_written_run_and_loaded_by_magics() {
    assert_eq!(
        each([
            "%%writefile m.py\ndef hello(): return 'hello'\nif __name__ == '__main__': made = hello(); print('ran', made)",
            "import m; m.hello()",
            "%run m.py",
            "made",
            "!python m.py",
            "%load_ext autoreload\n%autoreload 2",
            "%%writefile m.py\ndef hello(): return 'changed by a longer text'",
            "m.hello()",
            "%cat m.py",
            "import os; os.stat('m.py').st_size",
        ])
        .await,
        json!([
            {"stdout": "Writing m.py\n", "files": ["m.py"]},
            {"value": "'hello'"},
            {"stdout": "ran hello\n"},
            {"value": "'hello'"},
            {"stdout": "ran hello\n"},
            {},
            {"stdout": "Overwriting m.py\n", "files": ["m.py"]},
            {"value": "'changed by a longer text'"},
            {"stdout": "def hello(): return 'changed by a longer text'\n"},
            {"value": "47"}
        ])
    );
}

#[tokio::test]
async fn magics_of_folders_variables_and_the_environment_work() {
    assert_eq!(
        each([
            "%pwd",
            "%cd /tmp",
            "%cd -",
            "%env KEY=value",
            "import os\nos.environ['KEY']",
            "%env KEY",
            "x, y = 1, 'two'\n%who",
            "%mkdir folder\n%ls",
            "%%capture kept\nprint('out')\nx",
            "kept.stdout, len(kept.outputs)",
            "%reset -f\n'x' in globals()",
            "%precision 2\n3.14159",
            "_ * 2, Out[12]",
        ])
        .await,
        json!([
            {"value": "'/files'"},
            {"stdout": "/tmp\n"},
            {"stdout": "/files\n"},
            {"stdout": "env: KEY=value\n"},
            {"value": "'value'"},
            {"value": "'value'"},
            {"stdout": "os\t x\t y\t \n"},
            {"stdout": "folder/\n"},
            {},
            {"value": "('out\\n', 1)"},
            {"value": "False"},
            {"value": "3.14"},
            {"value": "(6.28, 3.14)"}
        ])
    );
}

#[tokio::test]
async fn a_magic_that_does_not_exist_is_an_error_with_its_name() {
    assert_eq!(
        each(["%nosuch", "%%nosuch\nx", "1"]).await,
        json!([
            {"error": ["UsageError", "Line magic function `%nosuch` not found."], "exit_code": 1},
            {"error": ["UsageError", "Cell magic `%%nosuch` not found."], "exit_code": 1},
            {"value": "1"}
        ])
    );
}

#[tokio::test]
async fn help_is_text_and_waits_for_nobody() {
    assert_eq!(
        each([
            "def f(a, b=2):\n    'What it does.'\n    return a",
            "help(f)",
            "len?",
            "?len",
            "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as text: help(str)\ntext.getvalue().splitlines()[0]",
            "import pydoc; pydoc.pager('a\\n' * 3)",
            "%pdoc f",
        ])
        .await,
        json!([
            {},
            {"stdout": "Help on function f in module __main__:\n\nf(a, b=2)\n    What it does.\n\n"},
            {"stdout": "Signature: len(obj, /)\nDocstring: Return the number of items in a container.\nType:      builtin_function_or_method\n"},
            {"stdout": "Signature: len(obj, /)\nDocstring: Return the number of items in a container.\nType:      builtin_function_or_method\n"},
            {"value": "'Help on class str in module builtins:'"},
            {"stdout": "a\na\na\n"},
            {"stdout": "Class docstring:\n    What it does.\nCall docstring:\n    Call self as a function.\n"}
        ])
    );
}

#[tokio::test]
async fn the_tools_of_a_shell_work_together() {
    let command = "
        printf 'b 2\\na 1\\nc 3\\n' > t.txt
        sort t.txt | awk '{sum += $2; print $1} END {print sum}'
        sed -n 's/a/A/p' t.txt; tail -n 1 t.txt; grep -c '[ab]' t.txt; cut -d' ' -f1 t.txt | paste -sd,
        find . -name '*.txt'; tar czf t.tgz t.txt && tar tzf t.tgz; wc -l < t.txt
        diff <(sort t.txt) <(sort -r t.txt) | head -n 1; comm -12 <(sort t.txt) <(echo 'a 1')
        cut -c1 t.txt | xargs -n1 echo -; seq 3 | tr '\\n' '+'; echo
        python -c 'print(1)'; python3 - <<< 'print(2)'; cat <<< 'here'; echo {1..3}
        double() { local x=$1; echo $((x * 2)); }; double 4
        set -o pipefail; false | true; echo $?; [[ abc =~ b(.) ]] && echo ${BASH_REMATCH[1]}
        sleep 0.01 & wait; trap 'echo bye' EXIT; echo é | wc -m; whoami; echo $HOME $PWD";
    assert_eq!(
        shell(command).await,
        json!({
            "stdout": "a\nb\nc\n6\nA 1\nc 3\n2\nb,a,c\n./t.txt\nt.txt\n3\n1,2d0\na 1\n- b\n- a\n- c\n1+2+3+\n1\n2\nhere\n1 2 3\n8\n1\nc\n2\nuser\n/home/user /files\nbye\n",
            "files": ["t.tgz", "t.txt"]
        })
    );
}

#[tokio::test]
async fn here_documents_make_scripts_that_run() {
    assert_eq!(
        shell("cat <<'END' > s.py\nimport sys\nprint('script', sys.argv)\nEND\npython s.py a 'b c'; bash -c 'exit 4'").await,
        json!({"stdout": "script ['s.py', 'a', 'b c']\n", "error": "exit code 4", "exit_code": 4, "files": ["s.py"]})
    );
}
