//! What a session does not have: packages, a network, a terminal, a screen. It says so at once.

use serde_json::json;

use crate::support::told::{complaint, each, last_words, shell, soon, tells, tells_with};

const NO_INPUT: &str =
    "there is no terminal here: give the request a `stdin`, or put the value into the code";
const NO_DEBUGGER: &str = "there is no terminal for a debugger here: print what you want to see, or give the request a `stdin`";
const NO_NETWORK: &str =
    "a session has no network: upload what it needs as files, or put it into the code";
const NO_SCREEN: &str =
    "there is no screen: leave matplotlib's backend as it is, figures are shown by themselves";
const NO_INSTALL: &str = "packages cannot be installed from inside a session: name them in the `packages` field of the request that makes it\n";

/// What is said of a package that is not there.
fn absent(package: &str) -> String {
    let names = include_str!("../../guest/requirements.in").lines();
    let installed: Vec<_> = names.filter(|line| !line.starts_with('#')).collect();
    format!(
        "no package {package} is installed: name it in the `packages` field of the request that makes the session; installed: {}",
        installed.join(", ")
    )
}

#[tokio::test]
async fn a_module_that_is_not_there_is_told_with_its_package_and_those_that_are() {
    for (code, package) in [
        ("import nosuchpkg", "nosuchpkg"),
        ("import yaml", "PyYAML"),
        ("import cv2", "opencv-python-headless"),
        ("import sklearn, Bio.SeqIO", "biopython"),
        ("def load():\n    from bs4 import BeautifulSoup\nload()", "beautifulsoup4"),
        ("import importlib; importlib.import_module('statsmodels.api')", "statsmodels"),
        (
            "try: import torch\nexcept ImportError as error: raise RuntimeError('no torch') from error",
            "torch",
        ),
        ("import pandas as pd; pd.DataFrame({'a': [1]}).to_markdown()", "tabulate"),
        ("import io, pandas as pd; pd.read_html(io.StringIO('<table></table>'))", "lxml"),
    ] {
        assert_eq!(last_words(code).await, absent(package), "{code}");
    }
    assert_eq!(
        tells("import nosuchpkg").await,
        json!({"error": ["ModuleNotFoundError", "No module named 'nosuchpkg'"], "exit_code": 1})
    );
}

#[tokio::test]
async fn a_wrong_name_of_what_is_there_is_told_with_the_right_one() {
    assert_eq!(
        last_words("import numpy.nosuch").await,
        "`numpy` is there and has no module `numpy.nosuch`"
    );
    assert_eq!(last_words("import pillow").await, "the package pillow is imported as `PIL`");
    assert_eq!(
        last_words("import scikit_learn").await,
        "the package scikit_learn is imported as `sklearn`"
    );
    assert_eq!(
        last_words("import msvcrt").await,
        "`msvcrt` is a part of Python that is not on this system"
    );
    assert!(
        last_words("from numpy import nosuch")
            .await
            .starts_with("ImportError: cannot import name 'nosuch' from 'numpy'")
    );
}

#[tokio::test]
async fn a_module_that_is_not_there_makes_no_noise_where_a_program_does_without() {
    let code = "
        try: import torch
        except ImportError as error: print(error)
        try: from numpy.nosuch import x
        except ModuleNotFoundError as error: print(error.name)
        import importlib.util
        print(importlib.util.find_spec('torch'))";
    assert_eq!(
        tells(code).await,
        json!({"stdout": "No module named 'torch'\nnumpy.nosuch\nNone\n"})
    );
}

#[tokio::test]
async fn a_script_is_told_of_what_is_not_there_too() {
    assert_eq!(complaint("!python -c 'import yaml'").await, absent("PyYAML"));
    assert_eq!(
        complaint("!python -c 'import urllib.request as u; u.urlopen(\"http://example.com\")'")
            .await,
        NO_NETWORK
    );
}

#[tokio::test]
async fn parquet_and_styles_name_what_they_want() {
    assert_eq!(
        each([
            "import pandas as pd\npd.DataFrame({'a': [1]}).to_parquet('x.parquet')",
            "pd.DataFrame({'a': [1]}).to_excel('x.xlsx', engine='xlsxwriter')",
        ])
        .await,
        json!([
            {"error": ["ImportError", "Unable to find a usable engine; tried using: 'pyarrow', 'fastparquet'."], "exit_code": 1},
            {"error": ["ModuleNotFoundError", "No module named 'xlsxwriter'"], "exit_code": 1}
        ])
    );
}

#[tokio::test]
async fn installing_is_refused_in_one_sentence_whichever_way_it_is_tried() {
    assert_eq!(soon("!pip install six").await, json!({"stderr": NO_INSTALL}));
    assert_eq!(soon("%pip install six").await, json!({"stderr": NO_INSTALL}));
    assert_eq!(soon("pip install six").await, json!({"stderr": NO_INSTALL}));
    assert_eq!(soon("%conda install six").await, json!({"stderr": NO_INSTALL}));
    assert_eq!(soon("!pip3 install --upgrade numpy six").await, json!({"stderr": NO_INSTALL}));
    assert_eq!(
        soon("!pip uninstall -y numpy; pip download six").await,
        json!({"stderr": NO_INSTALL.repeat(2)})
    );
    assert_eq!(
        soon("import pip; pip.main(['install', 'six'])").await,
        json!({"stderr": NO_INSTALL, "value": "1"})
    );
    assert_eq!(
        soon("import subprocess, sys\nsubprocess.check_call([sys.executable, '-m', 'pip', 'install', 'six'])").await,
        json!({
            "stderr": NO_INSTALL,
            "error": ["CalledProcessError", "Command '['/opt/venv/bin/python', '-m', 'pip', 'install', 'six']' returned non-zero exit status 1."],
            "exit_code": 1
        })
    );
    assert_eq!(
        shell("pip install six").await,
        json!({"stderr": NO_INSTALL, "error": "exit code 1", "exit_code": 1})
    );
}

#[tokio::test]
async fn installing_what_is_there_is_no_error_and_pip_tells_what_is_there() {
    assert_eq!(soon("!pip install -q numpy 'pandas>=1.0'").await, json!({}));
    assert_eq!(soon("%pip install -q -U matplotlib").await, json!({}));
    assert_eq!(soon("!pip install -q 'numpy<1'").await, json!({"stderr": NO_INSTALL}));
    assert_eq!(
        soon("!pip show numpy | grep ^Name; pip list | grep -c pandas").await,
        json!({"stdout": "Name: numpy\n1\n"})
    );
    assert_eq!(
        soon("!pip check; python -m pip --version | cut -c1-4").await,
        json!({"stdout": "No broken requirements found.\npip \n"})
    );
    assert_eq!(soon("import pip; pip.__version__ == __import__('importlib.metadata').metadata.version('pip')").await, json!({"value": "True"}));
}

#[tokio::test]
async fn the_network_is_said_to_be_absent() {
    assert_eq!(
        last_words(
            "import urllib.request; urllib.request.urlopen('https://example.com', timeout=20)"
        )
        .await,
        NO_NETWORK
    );
    assert_eq!(
        last_words("import pandas as pd; pd.read_csv('https://example.com/x.csv')").await,
        NO_NETWORK
    );
    assert_eq!(
        last_words("import socket; socket.create_connection(('1.1.1.1', 80), 20)").await,
        NO_NETWORK
    );
    assert_eq!(
        last_words("import smtplib; smtplib.SMTP('smtp.example.com', 587)").await,
        NO_NETWORK
    );
    assert_eq!(last_words("import seaborn as sns; sns.load_dataset('iris')").await, NO_NETWORK);
    assert_eq!(
        last_words("import socket; socket.create_connection(('127.0.0.1', 1), 20)").await,
        "ConnectionRefusedError: [Errno 111] Connection refused"
    );
    assert_eq!(
        soon("import webbrowser; webbrowser.open('http://example.com')").await,
        json!({"value": "False"})
    );
}

#[tokio::test]
async fn whoever_waits_for_a_person_is_told_that_there_is_none() {
    assert_eq!(
        soon("input('name? ')").await,
        json!({"stdout": "name? ", "error": ["EOFError", NO_INPUT], "exit_code": 1})
    );
    assert_eq!(
        soon("while True: input()").await,
        json!({"error": ["EOFError", NO_INPUT], "exit_code": 1})
    );
    assert_eq!(
        soon("import getpass; getpass.getpass()").await,
        json!({"stdout": "Password: ", "error": ["EOFError", NO_INPUT], "exit_code": 1})
    );
    assert_eq!(
        last_words("import pdb\nx = 1\npdb.set_trace()\nx = 2").await,
        format!("BdbQuit: {NO_DEBUGGER}")
    );
    assert_eq!(
        last_words("def f():\n    y = 1\n    breakpoint()\n    return y\nf()").await,
        format!("BdbQuit: {NO_DEBUGGER}")
    );
    assert_eq!(
        each([
            "import sys\nsys.stdin.read(), sys.stdin.readline(), sys.stdin.isatty()",
            "!read x; echo \"<$x>\"; cat",
            "import code; code.interact(banner='', exitmsg='')\nNone"
        ])
        .await,
        json!([{"value": "('', '', False)"}, {"stdout": "<>\n"}, {"stdout": "In : ", "stderr": "\n"}])
    );
}

#[tokio::test]
async fn standard_input_goes_to_all_who_read_it() {
    assert_eq!(
        tells_with(json!({"code": "name = input('name? '); n = int(input())\nname * n", "stdin": "Bob\n3\n"})).await,
        json!({"stdout": "name? ", "value": "'BobBobBob'"})
    );
    assert_eq!(
        tells_with(json!({"code": "import getpass; getpass.getpass('pw: ')", "stdin": "secret\n"}))
            .await,
        json!({"stdout": "pw: ", "value": "'secret'"})
    );
    assert_eq!(
        tells_with(
            json!({"code": "import sys\n[line.strip() for line in sys.stdin]", "stdin": "a\né\n"})
        )
        .await,
        json!({"value": "['a', 'é']"})
    );
    assert_eq!(
        tells_with(json!({"code": "!cat", "stdin": "through\n"})).await,
        json!({"stdout": "through\n"})
    );
    assert_eq!(
        tells_with(json!({"code": "def f():\n    y = 1\n    breakpoint()\n    return y\nf()", "stdin": "p y + 41\nc\n"})).await["value"],
        "1"
    );
}

#[tokio::test]
async fn pagers_and_tools_that_want_a_terminal_end_by_themselves() {
    assert_eq!(
        shell("echo text > t; command -v less > /dev/null && less t || cat t; head -c 3 t").await["stdout"],
        "text\ntex"
    );
    assert_eq!(
        shell("python; cat; bash -i -c 'echo hi' 2> /dev/null; sh -c 'read x; echo end'").await,
        json!({"stdout": "hi\nend\n"})
    );
    assert_eq!(
        soon("import os, shutil\nshutil.get_terminal_size().columns, os.environ['TERM']").await,
        json!({"value": "(80, 'dumb')"})
    );
}

#[tokio::test]
async fn editors_are_refused_at_once() {
    let said = "there is no terminal for an editor here: write the file with code\n";
    for editor in ["vi", "vim", "nano"] {
        assert_eq!(
            shell(&format!("{editor} t.txt")).await,
            json!({"stderr": said, "error": "exit code 1", "exit_code": 1})
        );
    }
}

#[tokio::test]
async fn backends_that_want_a_screen_are_refused_and_plots_go_on() {
    assert_eq!(last_words("%matplotlib qt").await, NO_SCREEN);
    assert_eq!(
        last_words("import matplotlib.pyplot as plt\nplt.switch_backend('TkAgg')").await,
        NO_SCREEN
    );
    assert_eq!(last_words("import matplotlib\nmatplotlib.use('Qt5Agg')").await, NO_SCREEN);
    assert_eq!(
        each(["%matplotlib tk", "import matplotlib.pyplot as plt\nplt.plot([1]); plt.show()"])
            .await[1],
        json!({"shown": ["image/png"]})
    );
}
