//! Numbers, tables, models and the files they come in.

use serde_json::json;

use crate::support::server::caller;
use crate::support::told::{each, seen, tells};

#[tokio::test]
async fn linear_algebra_of_every_kind_works_under_the_default_limits() {
    assert_eq!(
        each([
            "
            import numpy as np
            a = np.random.default_rng(0).normal(size=(500, 500))
            inverse = np.linalg.inv(a)
            print(np.allclose(a @ inverse, np.eye(500)), np.linalg.svd(a)[1].shape, np.linalg.eigvals(a).shape)
            print(np.allclose(np.linalg.solve(a, a[0]), inverse @ a[0]), np.linalg.qr(a)[0].shape, np.fft.fft2(a).shape)
            b = np.ones((2000, 2000)); print((b @ b)[0, 0])",
            "
            import multiprocessing as mp
            def product(_): return float((np.ones((300, 300)) @ np.ones((300, 300))).sum())
            with mp.Pool(2) as pool: print(pool.map(product, range(2)))
            with mp.get_context('spawn').Pool(2) as pool: print(pool.map(np.linalg.norm, [np.ones(4)]))",
            "
            import os, subprocess, sys
            child = 'import numpy as np; a = np.ones((500, 500)); print((a @ a).sum(), np.linalg.svd(a)[1].shape)'
            print(subprocess.run([sys.executable, '-c', child], capture_output=True, text=True))
            many = {name: value for name, value in os.environ.items() if 'THREADS' not in name}
            print(subprocess.run([sys.executable, '-c', child], capture_output=True, text=True, env=many).stdout)",
        ])
        .await,
        json!([
            {"stdout": "True (500,) (500,)\nTrue (500, 500) (500, 500)\n2000.0\n"},
            {"stdout": "[27000000.0, 27000000.0]\n[np.float64(2.0)]\n"},
            {
                "stdout": "CompletedProcess(args=['/opt/venv/bin/python', '-c', 'import numpy as np; a = np.ones((500, 500)); print((a @ a).sum(), np.linalg.svd(a)[1].shape)'], returncode=0, stdout='125000000.0 (500,)\\n', stderr='')\n125000000.0 (500,)\n\n"
            }
        ])
    );
}

#[tokio::test]
async fn scipy_and_sympy_calculate() {
    let code = "
        import numpy as np, sympy
        from scipy import integrate, interpolate, linalg, optimize, signal, sparse, stats
        print(optimize.minimize(lambda x: (x[0] - 1) ** 2, [0]).x.round(3), round(integrate.quad(np.sin, 0, np.pi)[0], 6))
        print(stats.ttest_ind([1, 2, 3], [2, 3, 4]).pvalue.round(3), linalg.expm(np.zeros((2, 2))).tolist())
        print(float(interpolate.CubicSpline([0, 1, 2], [0, 1, 4])(1.5)), sparse.eye(3).sum(), signal.find_peaks([0, 2, 0])[0])
        x = sympy.symbols('x')
        print(sympy.solve(x ** 2 - 2, x), sympy.latex(sympy.diff(sympy.exp(x ** 2), x)), sympy.Matrix([[1, 2], [3, 4]]).det())
        sympy.pprint(sympy.sqrt(x) / 2)
        sympy.Integral(sympy.sin(x) ** 2, x)";
    assert_eq!(
        tells(code).await,
        json!({
            "stdout": "[1.] 2.0\n0.288 [[1.0, 0.0], [0.0, 1.0]]\n2.25 3.0 [1]\n[-sqrt(2), sqrt(2)] 2 x e^{x^{2}} -2\n√x\n──\n2 \n",
            "value": "Integral(sin(x)**2, x)",
            "as": "text/latex"
        })
    );
}

#[tokio::test]
async fn scikit_learn_fits_with_two_jobs_and_joblib_runs_functions_of_a_cell() {
    assert_eq!(
        each([
            "
            from sklearn.datasets import load_iris, make_classification
            from sklearn.ensemble import RandomForestClassifier
            from sklearn.model_selection import GridSearchCV, cross_val_score
            X, y = make_classification(200, random_state=0)
            forest = RandomForestClassifier(10, n_jobs=2, random_state=0)
            print(cross_val_score(forest, X, y, n_jobs=2).mean() > 0.8)
            search = GridSearchCV(RandomForestClassifier(random_state=0), {'n_estimators': [5, 10]}, n_jobs=2, cv=2)
            print(search.fit(*load_iris(return_X_y=True)).best_score_ > 0.8)",
            "
            from joblib import Parallel, delayed
            def square(x): return x * x
            for backend in ('loky', 'threading', 'multiprocessing'):
                print(Parallel(n_jobs=2, backend=backend)(delayed(square)(n) for n in range(3)))
            Parallel(n_jobs=-1)(delayed(lambda x: x + 1)(n) for n in range(3))",
            "RandomForestClassifier(5)",
        ])
        .await,
        json!([
            {"stdout": "True\nTrue\n"},
            {"stdout": "[0, 1, 4]\n[0, 1, 4]\n[0, 1, 4]\n", "value": "[1, 2, 3]"},
            {"value": "RandomForestClassifier(n_estimators=5)", "as": "text/html"}
        ])
    );
}

#[tokio::test]
async fn scikit_learn_finds_the_cores_and_warns_of_nothing() {
    let code = "
        from sklearn.cluster import KMeans
        KMeans(2, n_init=3, random_state=0).fit([[0], [1], [9]]).labels_.tolist() in ([0, 0, 1], [1, 1, 0])";
    assert_eq!(tells(code).await, json!({"value": "True"}));
}

#[tokio::test]
async fn a_million_rows_are_grouped_joined_and_sorted_under_the_default_limits() {
    assert_eq!(
        each([
            "
            import numpy as np, pandas as pd
            n = 1_000_000
            df = pd.DataFrame({'k': np.arange(n) % 100, 'v': np.arange(n) / 7, 's': (pd.Series(np.arange(n)) % 7).astype(str)})
            means = df.groupby('k').v.mean().rename('mean').reset_index()
            print(means.shape, df.groupby(['k', 's']).v.agg(['sum', 'std']).shape, df.merge(means, on='k').shape)
            print(df.sort_values('v', ascending=False).iloc[0].to_dict(), df.pivot_table(index='k', columns='s', values='v').shape, df.describe().shape)",
            "df.to_csv('big.csv', index=False)\nread = pd.read_csv('big.csv', dtype={'s': str})\nread.shape, bool((read.k == df.k).all())",
        ])
        .await,
        json!([
            {"stdout": "(100, 2) (700, 2) (1000000, 4)\n{'k': 99, 'v': 142857.0, 's': '0'} (100, 7) (8, 2)\n"},
            {"value": "((1000000, 3), True)", "files": ["big.csv"]}
        ])
    );
}

#[tokio::test]
async fn an_uploaded_table_of_twenty_megabytes_is_read() {
    let caller = caller();
    let session = caller.session().await;
    let mut table = String::from("id,amount,name,day\n");
    for row in 0..600_000 {
        table.push_str(&format!("{row},{row}.5,name {},2024-01-{:02}\n", row % 100, row % 28 + 1));
    }
    assert!(table.len() > 19_000_000);
    session.put("big.csv", table).await;
    let code = "
        import pandas as pd
        df = pd.read_csv('big.csv', parse_dates=['day'])
        print(df.shape, df.dtypes.astype(str).to_dict(), df.groupby('name').amount.sum().shape, df.day.max())";
    assert_eq!(
        seen(&session.exec(code).await),
        json!({
            "stdout": "(600000, 4) {'id': 'int64', 'amount': 'float64', 'name': 'str', 'day': 'datetime64[us]'} (100,) 2024-01-28 00:00:00\n"
        })
    );
}

#[tokio::test]
async fn tables_are_shown_as_text_and_as_html() {
    assert_eq!(
        each([
            "import pandas as pd\ndf = pd.DataFrame({'a': [1, 2], 'b': ['x', 'y']}); df",
            "df.a",
            "print(df); df.info()\ndisplay(df)",
            "pd.DataFrame(0, range(100), range(50)).shape",
        ])
        .await,
        json!([
            {"value": "   a  b\n0  1  x\n1  2  y", "as": "text/html"},
            {"value": "0    1\n1    2\nName: a, dtype: int64"},
            {
                "stdout": "   a  b\n0  1  x\n1  2  y\n<class 'pandas.DataFrame'>\nRangeIndex: 2 entries, 0 to 1\nData columns (total 2 columns):\n #   Column  Non-Null Count  Dtype\n---  ------  --------------  -----\n 0   a       2 non-null      int64\n 1   b       2 non-null      str  \ndtypes: int64(1), str(1)\nmemory usage: 164.0 bytes\n",
                "shown": ["text/html"]
            },
            {"value": "(100, 50)"}
        ])
    );
}

#[tokio::test]
async fn workbooks_are_written_read_and_changed() {
    let code = "
        import openpyxl, pandas as pd
        df = pd.DataFrame({'name': ['é', '数'], 'n': [1, 2]})
        with pd.ExcelWriter('book.xlsx') as book:
            df.to_excel(book, sheet_name='One', index=False); df.to_excel(book, sheet_name='Two')
        print(pd.read_excel('book.xlsx').equals(df), pd.ExcelFile('book.xlsx').sheet_names)
        book = openpyxl.load_workbook('book.xlsx')
        book['One']['D1'] = '=SUM(B2:B3)'; book.save('book.xlsx')
        print([cell.value for cell in openpyxl.load_workbook('book.xlsx')['One'][1]])";
    assert_eq!(
        tells(code).await,
        json!({"stdout": "True ['One', 'Two']\n['name', 'n', None, '=SUM(B2:B3)']\n", "files": ["book.xlsx"]})
    );
}

#[tokio::test]
async fn databases_archives_and_the_formats_of_python_work() {
    let code = "
        import bz2, csv, gzip, io, json, lzma, pickle, shutil, sqlite3, tarfile, zipfile
        import xml.etree.ElementTree as ET
        import pandas as pd
        with sqlite3.connect('t.db') as db:
            db.execute('create table t (a, b)'); db.executemany('insert into t values (?, ?)', [(1, 'x'), (2, 'ü')])
            pd.DataFrame({'z': [1]}).to_sql('u', db, index=False)
        print(pd.read_sql('select sum(a) s, max(b) m from t', db).to_dict('records')); db.close()
        with open('a.csv', 'w', newline='') as file: csv.writer(file).writerows([['h', 'é'], [1, 2]])
        print(list(csv.DictReader(open('a.csv'))), pd.read_csv('a.csv').to_json())
        with zipfile.ZipFile('z.zip', 'w', zipfile.ZIP_DEFLATED) as archive: archive.write('a.csv'); archive.writestr('数.txt', 'ü')
        print(zipfile.ZipFile('z.zip').namelist(), tarfile.open(shutil.make_archive('t', 'gztar', '.', 'a.csv')).getnames())
        for packed in (gzip, bz2, lzma): print(packed.decompress(packed.compress(b'packed')))
        print(json.loads(json.dumps({'k': 'é'})), pickle.loads(pickle.dumps({1: (2,)})), ET.fromstring('<a><b>1</b></a>')[0].text)";
    assert_eq!(
        tells(code).await,
        json!({
            "stdout": "[{'s': 3, 'm': 'ü'}]\n[{'h': '1', 'é': '2'}] {\"h\":{\"0\":1},\"\\u00e9\":{\"0\":2}}\n['a.csv', '数.txt'] ['a.csv']\nb'packed'\nb'packed'\nb'packed'\n{'k': 'é'} {1: (2,)} 1\n",
            "files": ["a.csv", "t.db", "t.tar.gz", "z.zip"]
        })
    );
}

#[tokio::test]
async fn what_psutil_and_platform_say_is_the_sessions_own() {
    let code = "
        import getpass, os, platform, psutil, socket
        print(psutil.pids(), psutil.Process().username(), psutil.disk_usage('/files').total == 256 << 20, psutil.cpu_count() >= 1)
        print(platform.node(), socket.gethostname(), getpass.getuser(), os.path.expanduser('~'), os.getcwd())";
    assert_eq!(
        tells(code).await,
        json!({"stdout": "[1, 2] user True True\nsandbox sandbox user /home/user /files\n"})
    );
}
