//! Programs as models write them: what works in a script works here.

use serde_json::json;

use crate::support::told::{each, last_words, tells};

#[tokio::test]
async fn an_indented_cell_and_a_pasted_doctest_run() {
    assert_eq!(
        each(["\n    x = 1\n    if x:\n        print(x)\n", ">>> y = 2\n>>> y + 1"]).await,
        json!([{"stdout": "1\n"}, {"value": "3"}])
    );
}

#[tokio::test]
async fn programs_run_with_pipes_timeouts_and_their_exit_codes() {
    let code = "
        import os, subprocess
        print(subprocess.run(['echo', 'a'], capture_output=True, text=True))
        print(subprocess.check_output('echo $((1 + 2)) | tr 3 4', shell=True), subprocess.getstatusoutput('false'))
        sort = subprocess.Popen(['sort'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        print(sort.communicate('b\\na\\n'))
        try: subprocess.run(['sleep', '5'], timeout=0.05)
        except subprocess.TimeoutExpired: print('timed out')
        try: subprocess.check_output(['ls', '/nosuch'], stderr=subprocess.STDOUT, text=True)
        except subprocess.CalledProcessError as error: print(error.returncode, error.output)
        try: subprocess.run(['nosuchprogram'])
        except FileNotFoundError as error: print(error)
        first = subprocess.Popen(['echo', 'x\\ny'], stdout=subprocess.PIPE)
        second = subprocess.Popen(['wc', '-l'], stdin=first.stdout, stdout=subprocess.PIPE, text=True)
        print(second.communicate()[0].strip())
        with subprocess.Popen('for i in 1 2; do echo $i; done', shell=True, stdout=subprocess.PIPE, text=True) as lines:
            for line in lines.stdout: print('line', line.strip())
        print(os.system('exit 3') >> 8, os.popen('echo popen').read())";
    assert_eq!(
        tells(code).await,
        json!({
            "stdout": "CompletedProcess(args=['echo', 'a'], returncode=0, stdout='a\\n', stderr='')\nb'4\\n' (1, '')\n('a\\nb\\n', None)\ntimed out\n\
                       2 ls: cannot access '/nosuch': No such file or directory\n\n[Errno 2] No such file or directory: 'nosuchprogram'\n2\nline 1\nline 2\n3 popen\n\n"
        })
    );
}

#[tokio::test]
async fn exit_in_all_its_spellings_ends_the_cell_there_with_its_code_and_keeps_the_state() {
    assert_eq!(
        each([
            "x = 5\nprint('before'); exit(); print('after')",
            "print('before'); exit(3); print('after')",
            "def main():\n    quit(4)\nmain()",
            "exit",
            "raise SystemExit",
            "import sys\nsys.exit('why')",
            "sys.exit(-1)",
            "try: sys.exit(7)\nfinally: print('cleaned up')",
            "try: sys.exit(7)\nexcept SystemExit as end: print('caught', end.code)",
            "open('m.py', 'w').write('def leave(): exit(6)')\nimport m\nm.leave()",
            "x",
        ])
        .await,
        json!([
            {"stdout": "before\n"},
            {"stdout": "before\n", "error": ["SystemExit", "3"], "exit_code": 3},
            {"error": ["SystemExit", "4"], "exit_code": 4},
            {},
            {},
            {"error": ["SystemExit", "why"], "exit_code": 1},
            {"error": ["SystemExit", "-1"], "exit_code": 255},
            {"stdout": "cleaned up\n", "error": ["SystemExit", "7"], "exit_code": 7},
            {"stdout": "caught 7\n"},
            {"files": ["m.py"], "error": ["SystemExit", "6"], "exit_code": 6},
            {"value": "5"}
        ])
    );
}

#[tokio::test]
async fn a_file_beside_the_program_is_a_module_of_it() {
    assert_eq!(
        each([
            "import os\nos.makedirs('kit'); open('kit/__init__.py', 'w').close()\nprint('def name(): return __name__', file=open('kit/part.py', 'w'))\nprint('n = 1', file=open('plain.py', 'w'))",
            "import plain\nfrom kit import part\npart.name(), plain.n",
            "import importlib\nprint('n = 22', file=open('plain.py', 'w'))\nimportlib.reload(plain).n",
        ])
        .await,
        json!([
            {"files": ["kit/__init__.py", "kit/part.py", "plain.py"]},
            {"value": "('kit.part', 1)"},
            {"value": "22", "files": ["plain.py"]}
        ])
    );
}

#[tokio::test]
async fn time_zones_are_known_to_every_library() {
    let code = "
        import datetime as dt, os, subprocess, time, zoneinfo
        import pandas as pd
        from dateutil import parser, tz
        noon = dt.datetime(2024, 7, 1, 12, tzinfo=dt.timezone.utc)
        print(noon.astimezone(zoneinfo.ZoneInfo('America/New_York')), noon.astimezone().tzname())
        print(len(zoneinfo.available_timezones()) > 400)
        print(pd.Timestamp('2024-07-01').tz_localize('Europe/Berlin').tz_convert('Asia/Tokyo'))
        print(parser.parse('2024-07-01 10:00').replace(tzinfo=tz.gettz('Asia/Kolkata')).utcoffset())
        os.environ['TZ'] = 'America/Sao_Paulo'; time.tzset()
        print(time.tzname[0], dt.datetime(2024, 7, 1).astimezone().isoformat())
        print(subprocess.check_output('TZ=Asia/Tokyo date -d @0 +%H:%M', shell=True, text=True))";
    assert_eq!(
        tells(code).await,
        json!({
            "stdout": "2024-07-01 08:00:00-04:00 UTC\nTrue\n2024-07-01 07:00:00+09:00\n5:30:00\n-03 2024-07-01T00:00:00-03:00\n09:00\n\n"
        })
    );
}

#[tokio::test]
async fn text_is_utf_8_wherever_it_goes() {
    let code = "
        import locale, os, subprocess, sys
        from pathlib import Path
        print(locale.getpreferredencoding(), sys.getfilesystemencoding(), sys.stdout.encoding, sys.stdin.encoding)
        open('données 数据.txt', 'w').write('é☃数据😀')
        print(os.listdir(), Path('données 数据.txt').read_bytes().decode())
        print(subprocess.run(['cat', 'données 数据.txt'], capture_output=True, text=True).stdout)
        print(subprocess.check_output('ls; echo ñ', shell=True, text=True))
        child = 'import sys; print(open(\"données 数据.txt\").read(), sys.stdout.encoding); print(\"ß\", file=sys.stderr)'
        subprocess.run([sys.executable, '-c', child])
        locale.setlocale(locale.LC_ALL, '')";
    assert_eq!(
        tells(code).await,
        json!({
            "stdout": "UTF-8 utf-8 utf-8 utf-8\n['données 数据.txt'] é☃数据😀\né☃数据😀\ndonnées 数据.txt\nñ\n\né☃数据😀 utf-8\n",
            "stderr": "ß\n",
            "value": "'C.UTF-8'",
            "files": ["données 数据.txt"]
        })
    );
}

#[tokio::test]
async fn the_language_is_all_there() {
    let code = "
        from collections import Counter
        from dataclasses import dataclass
        from decimal import Decimal
        from enum import Enum
        from fractions import Fraction
        from functools import lru_cache
        from itertools import count, islice
        from typing import TypeVar, get_type_hints
        T = TypeVar('T')
        @dataclass(slots=True, kw_only=True)
        class Point: x: int; tags: list[str] | None = None
        class Colour(Enum): RED = 1
        @lru_cache
        def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
        def squares():
            for n in count(): yield n * n
        match {'key': [1, 2, 3]}:
            case {'key': [first, *rest]}: print(first, rest)
        print(Point(x=1), Colour.RED, fib(80), list(islice(squares(), 4)), get_type_hints(Point)['x'])
        print(Decimal('0.1') * 3, Fraction(1, 3) + 1, Counter('aab').most_common(1), f'{1234567.891:,.2f}', 10 ** 30)
        exec('made = 41'); eval('made + 1')";
    assert_eq!(
        tells(code).await,
        json!({
            "stdout": "1 [2, 3]\nPoint(x=1, tags=None) Colour.RED 23416728348467685 [0, 1, 4, 9] <class 'int'>\n0.3 4/3 [('a', 2)] 1,234,567.89 1000000000000000000000000000000\n",
            "value": "42"
        })
    );
}

#[tokio::test]
async fn errors_of_every_kind_are_told_by_name_and_message() {
    assert_eq!(
        each([
            "class Own(Exception): pass\ntry: 1 / 0\nexcept ZeroDivisionError as error: raise Own('chained') from error",
            "try: raise ExceptionGroup('all', [ValueError(1), TypeError(2)])\nexcept* ValueError as some: print(some.exceptions)",
            "raise ExceptionGroup('all', [ValueError(1), TypeError(2)])",
            "def deep(n): return deep(n + 1)\ndeep(0)",
            "assert 1 == 2, 'not so'",
            "raise KeyError('k')",
        ])
        .await,
        json!([
            {"error": ["Own", "chained"], "exit_code": 1},
            {"stdout": "(ValueError(1),)\n", "error": ["ExceptionGroup", "all (1 sub-exception)"], "exit_code": 1},
            {"error": ["ExceptionGroup", "all (2 sub-exceptions)"], "exit_code": 1},
            {"error": ["RecursionError", "maximum recursion depth exceeded"], "exit_code": 1},
            {"error": ["AssertionError", "not so"], "exit_code": 1},
            {"error": ["KeyError", "'k'"], "exit_code": 1}
        ])
    );
    assert_eq!(
        last_words("raise ExceptionGroup('all', [ValueError(1)])").await,
        "    +------------------------------------"
    );
    assert_eq!(
        last_words("error = ValueError('v'); error.add_note('a note'); raise error").await,
        "a note"
    );
}

#[tokio::test]
async fn the_source_of_what_a_cell_defines_is_known() {
    assert_eq!(
        each([
            "def f(a):\n    # why\n    return a / 0",
            "import inspect, traceback\nprint(inspect.getsource(f))",
            "try: f(1)\nexcept ZeroDivisionError: print('return a / 0' in traceback.format_exc())",
        ])
        .await,
        json!([{}, {"stdout": "def f(a):\n    # why\n    return a / 0\n\n"}, {"stdout": "True\n"}])
    );
}

#[tokio::test]
async fn signals_and_alarms_work() {
    let code = "
        import os, signal, time
        def stop(*_): raise TimeoutError('alarm')
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try: time.sleep(20)
        except TimeoutError as error: print(error)
        signal.signal(signal.SIGTERM, lambda *_: print('terminated'))
        os.kill(os.getpid(), signal.SIGTERM)
        None";
    assert_eq!(tells(code).await, json!({"stdout": "alarm\nterminated\n"}));
}

#[tokio::test]
async fn output_comes_whole_however_it_is_written() {
    let code = "
        import contextlib, io, os, sys, time
        for _ in range(3): print('.', end='', flush=True); time.sleep(0.01)
        sys.stdout.write('\\nwritten\\n'); sys.stdout.buffer.write(b'bytes\\n'); sys.stdout.flush()
        os.write(1, b'descriptor\\n'); os.system('echo child'); print('original', file=sys.__stdout__)
        text = io.StringIO()
        with contextlib.redirect_stdout(text): print('redirected')
        print(repr(text.getvalue()))
        print('error', file=sys.stderr)";
    assert_eq!(
        tells(code).await,
        json!({"stdout": "...\nwritten\nbytes\ndescriptor\nchild\noriginal\n'redirected\\n'\n", "stderr": "error\n"})
    );
}

#[tokio::test]
async fn logs_and_warnings_come_once_and_in_every_cell() {
    assert_eq!(
        each([
            "
            import logging, sys, warnings
            logging.basicConfig(level=logging.INFO, format='%(levelname)s %(message)s')
            logging.info('one')
            own = logging.getLogger('own'); own.propagate = False; own.setLevel('DEBUG')
            own.addHandler(logging.StreamHandler(sys.stdout))",
            "logging.info('two'); own.debug('three')",
            "warnings.formatwarning = lambda message, *_: f'{message}\\n'\ndef f(): warnings.warn('odd')\nfor _ in range(3): f()",
            "warnings.simplefilter('ignore'); f()",
        ])
        .await,
        json!([
            {"stderr": "INFO one\n"},
            {"stdout": "three\n", "stderr": "INFO two\n"},
            {"stderr": "odd\n"},
            {}
        ])
    );
}

#[tokio::test]
async fn tests_and_profiles_run_inside_a_cell() {
    assert_eq!(
        each([
            "
            import doctest, io, unittest
            class Sums(unittest.TestCase):
                def test_right(self): self.assertEqual(1 + 1, 2)
            runner = unittest.TextTestRunner(stream=io.StringIO())
            result = unittest.main(argv=[''], exit=False, testRunner=runner).result
            result.wasSuccessful(), result.testsRun",
            "def square(n):\n    '''\n    >>> square(3)\n    9\n    '''\n    return n * n\ndoctest.testmod()",
            "class Wrong(unittest.TestCase):\n    def test_wrong(self): self.assertEqual(1, 2)\nunittest.main(testRunner=runner)",
            "
            import cProfile, pstats, timeit, tracemalloc
            profile = cProfile.Profile(); profile.enable(); sum(range(9)); profile.disable()
            text = io.StringIO(); pstats.Stats(profile, stream=text).print_stats()
            tracemalloc.start(); held = [0] * 1000; print(tracemalloc.get_traced_memory()[0] > 0); tracemalloc.stop()
            print('function calls' in text.getvalue(), timeit.timeit('1 + 1', number=10) < 1)",
            "import argparse\nparser = argparse.ArgumentParser(); parser.add_argument('--n', type=int, default=1)\nparser.parse_args(), parser.parse_args(['--n', '2'])",
        ])
        .await,
        json!([
            {"value": "(True, 1)"},
            {"value": "TestResults(failed=0, attempted=1)"},
            {"error": ["SystemExit", "True"], "exit_code": 1},
            {"stdout": "True\nTrue True\n"},
            {"value": "(Namespace(n=1), Namespace(n=2))"}
        ])
    );
}

#[tokio::test]
async fn servers_and_clients_meet_on_the_loopback() {
    let code = "
        import http.server, json, socket, threading, urllib.request
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers['content-length']))
                self.send_response(200); self.end_headers(); self.wfile.write(body.upper())
            def log_message(self, *_): pass
        server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        print(urllib.request.urlopen(f'http://localhost:{server.server_port}/', data=b'body').read())
        server.shutdown(); server.server_close()
        listener = socket.create_server(('', 0))
        def serve():
            connection, _ = listener.accept()
            connection.sendall(connection.recv(99)[::-1]); connection.close()
        threading.Thread(target=serve).start()
        client = socket.create_connection(('localhost', listener.getsockname()[1]))
        client.sendall(b'abc'); print(client.recv(99))
        one, two = socket.socketpair(); one.send(b'x'); print(two.recv(1))";
    assert_eq!(tells(code).await, json!({"stdout": "b'BODY'\nb'cba'\nb'x'\n"}));
}

#[tokio::test]
async fn temporary_files_and_other_folders_work() {
    assert_eq!(
        each([
            "
            import os, shutil, tempfile
            from pathlib import Path
            with tempfile.TemporaryDirectory() as folder: Path(folder, 'x').write_text('x'); print(folder[:5])
            with tempfile.NamedTemporaryFile('w+') as file: print(file.name[:5])
            os.makedirs('sub/deep'); os.chdir('sub'); Path('a.txt').write_text('a'); os.symlink('a.txt', 'link')",
            "print(os.getcwd(), open('link').read(), [str(p) for p in sorted(Path('.').rglob('*'))])",
            "os.chdir('..'); shutil.copy('sub/a.txt', 'b.txt'); shutil.rmtree('sub'); os.rename('b.txt', 'c.txt'); os.listdir()",
        ])
        .await,
        json!([
            {"stdout": "/tmp/\n/tmp/\n", "files": ["sub/a.txt"]},
            {"stdout": "/files/sub a ['a.txt', 'deep', 'link']\n"},
            {"value": "['c.txt']", "files": ["c.txt"]}
        ])
    );
}
