//! Figures and rich results.

use serde_json::json;

use crate::support::told::{complaint, each, tells};

#[tokio::test]
async fn plots_of_every_library_are_shown_once() {
    assert_eq!(
        each([
            "
            import matplotlib.pyplot as plt, numpy as np, pandas as pd, seaborn as sns
            fig, axes = plt.subplots(1, 2)
            axes[0].hist([1, 2, 2]); axes[1].imshow(np.eye(3)); plt.tight_layout(); plt.show()",
            "fig",
            "
            axes = plt.figure().add_subplot(projection='3d')
            axes.plot_surface(*np.meshgrid([1, 2], [1, 2]), np.ones((2, 2)))
            None",
            "df = pd.DataFrame({'a': [1, 2], 'b': [2, 1]})\ndf.plot(); df.plot.bar(); df.hist()\nNone",
            "sns.heatmap(df.corr(), annot=True); plt.show(); sns.pairplot(df); None",
            "for n in range(3): plt.figure(n); plt.plot([n]); plt.show()",
            "import sympy\nsympy.plot(sympy.sin(sympy.symbols('x'))); None",
            "plt.plot([1]); plt.close()",
            "plt.get_fignums()",
            "plt.plot([1]); 1 / 0",
            "plt.get_fignums()",
        ])
        .await,
        json!([
            {"shown": ["image/png"]},
            {"value": "<Figure size 640x480 with 2 Axes>", "as": "image/png"},
            {"shown": ["image/png"]},
            {"shown": ["image/png", "image/png", "image/png"]},
            {"shown": ["image/png", "image/png"]},
            {"shown": ["image/png", "image/png", "image/png"]},
            {"shown": ["image/png"]},
            {},
            {"value": "[]"},
            {"shown": ["image/png"], "error": ["ZeroDivisionError", "division by zero"], "exit_code": 1},
            {"value": "[]"}
        ])
    );
}

#[tokio::test]
async fn figures_and_animations_are_saved_in_every_format() {
    assert_eq!(
        each([
            "
            import matplotlib.pyplot as plt
            plt.plot([1, 2])
            for kind in ('png', 'svg', 'pdf', 'jpg', 'webp', 'eps'): plt.savefig(f'plot.{kind}')
            plt.close()",
            "
            from matplotlib.animation import FuncAnimation
            fig, axes = plt.subplots(); line, = axes.plot([])
            animation = FuncAnimation(fig, lambda n: line.set_data(range(n), range(n)), frames=3)
            animation.save('moving.gif', writer='pillow'); html = animation.to_jshtml(); plt.close()",
            "from IPython.display import HTML, Image\ndisplay(HTML(html))\nImage('moving.gif')",
            "
            import threading
            def draw(): fig = plt.figure(); plt.plot([1]); fig.savefig('thread.png'); plt.close(fig)
            thread = threading.Thread(target=draw); thread.start(); thread.join()",
        ])
        .await,
        json!([
            {"files": ["plot.eps", "plot.jpg", "plot.pdf", "plot.png", "plot.svg", "plot.webp"]},
            {"files": ["moving.gif"]},
            {"shown": ["text/html"], "value": "<IPython.core.display.Image object>", "as": "image/gif"},
            {"files": ["thread.png"]}
        ])
    );
}

#[tokio::test]
async fn chinese_japanese_and_korean_are_drawn_whatever_style_or_font_is_chosen() {
    assert_eq!(
        each([
            "import matplotlib.pyplot as plt, seaborn as sns\ndef plot(): plt.title('数据 日本語 한국어 −1 é'); plt.plot([-1], label='中文'); plt.legend(); plt.show()\nplot()",
            "plt.style.use('ggplot'); plot()",
            "plt.style.use('seaborn-v0_8'); plot()",
            "sns.set_theme(); plot()",
            "sns.barplot(x=['数据', '日本', '한국'], y=[1, 2, 3]); plt.show()",
            "plt.rcdefaults(); plot()",
            "plt.rcParams['font.sans-serif'] = ['SimHei']; plt.rcParams['axes.unicode_minus'] = False; plot()",
            "plt.rcParams['font.sans-serif'] = ['Arial Unicode MS', 'Microsoft YaHei', 'Noto Sans CJK SC']; plot()",
            "plt.rcParams['font.family'] = 'Malgun Gothic'; plot()",
            "plt.rcParams['font.family'] = ['serif']; plot()",
            "with plt.style.context('dark_background'): plot()",
            "from matplotlib.font_manager import FontProperties\nplt.title('数据', fontproperties=FontProperties(family='SimHei')); plt.text(0, 0, '数据', family='monospace'); plt.show()",
            "plt.title('数据'); plt.savefig('plot.pdf'); plt.savefig('plot.svg'); plt.close()",
        ])
        .await,
        json!([
            {"shown": ["image/png"]}, {"shown": ["image/png"]}, {"shown": ["image/png"]}, {"shown": ["image/png"]},
            {"shown": ["image/png"]}, {"shown": ["image/png"]}, {"shown": ["image/png"]}, {"shown": ["image/png"]},
            {"shown": ["image/png"]}, {"shown": ["image/png"]}, {"shown": ["image/png"]}, {"shown": ["image/png"]},
            {"files": ["plot.pdf", "plot.svg"]}
        ])
    );
}

#[tokio::test]
async fn a_script_draws_chinese_too() {
    let code = "
        import subprocess, sys
        script = \"import matplotlib.pyplot as plt; plt.rcdefaults(); plt.title('数据 日本 한국'); plt.plot([1]); plt.savefig('plot.png')\"
        print(subprocess.run([sys.executable, '-c', script], capture_output=True, text=True).stderr)";
    assert_eq!(tells(code).await, json!({"stdout": "\n", "files": ["plot.png"]}));
}

#[tokio::test]
async fn a_font_that_is_not_there_is_told_once() {
    let code = "
        import matplotlib.pyplot as plt
        plt.rcParams['font.family'] = 'Nosuch Sans'; plt.title('text'); plt.plot([1]); plt.show()";
    assert_eq!(
        tells(code).await,
        json!({"stderr": "findfont: Font family 'Nosuch Sans' not found.\n", "shown": ["image/png"]})
    );
}

#[tokio::test]
async fn figures_are_shown_when_a_program_chooses_agg_and_run_shows_none_of_its_own() {
    assert_eq!(
        each([
            "
            import matplotlib
            matplotlib.use('Agg')
            import matplotlib.pyplot as plt
            plt.plot([1]); plt.savefig('plot.png'); plt.show()",
            "1",
            "fig = plt.figure(); plt.plot([1])\nNone",
            "%matplotlib inline\nplt.plot([1]); plt.show()",
            "open('m.py', 'w').write('x = 1')\n%run m.py",
        ])
        .await,
        json!([
            {"shown": ["image/png"], "files": ["plot.png"]},
            {"value": "1"},
            {"shown": ["image/png"]},
            {"shown": ["image/png"]},
            {"files": ["m.py"]}
        ])
    );
}

#[tokio::test]
async fn a_figure_that_cannot_be_drawn_says_why() {
    let code = "import matplotlib.pyplot as plt\nplt.rcParams['text.usetex'] = True; plt.title('x'); plt.show()";
    assert_eq!(
        complaint(code).await,
        "RuntimeError: Failed to process string with tex because latex could not be found"
    );
}

#[tokio::test]
async fn figures_may_be_vectors_or_larger() {
    assert_eq!(
        each([
            "%config InlineBackend.figure_format = 'svg'\nimport matplotlib.pyplot as plt\nplt.plot([1]); plt.show()",
            "%config InlineBackend.figure_formats = ['png', 'svg']\nplt.plot([1]); plt.show()",
            "%config InlineBackend.figure_format = 'retina'\nplt.plot([1]); plt.show()",
        ])
        .await,
        json!([
            {"shown": ["image/svg+xml"]},
            {"shown": ["image/png image/svg+xml"]},
            {"shown": ["image/png"]}
        ])
    );
}

#[tokio::test]
async fn rich_results_keep_their_kinds() {
    assert_eq!(
        each([
            "
            from IPython.display import *
            display(HTML('<b>h</b>'), Markdown('# m'), JSON({'a': [1, None, float('nan')]}), Latex('$x$'), Math('x^2'))
            display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'), Javascript('1'), Pretty('p'), {'plain': 1})",
            "handle = display('one', display_id=True); handle.update('two')",
            "display('first'); clear_output(); display('second')",
            "for n in range(3): clear_output(wait=True); display(n)",
            "
            from PIL import Image as Pictures
            image = Pictures.new('RGB', (4, 2), 'red'); image.save('red.png'); image.convert('L').save('grey.jpg')
            print(Pictures.open('red.png').getpixel((0, 0))); image",
            "%%html\n<b>x</b>",
            "%%latex\n$x$",
            "%%markdown\n# x",
            "
            class Both:
                def _repr_html_(self): return '<i>both</i>'
                def __repr__(self): return 'both'
            Both()",
            "1; 2",
            "3;",
            "None",
        ])
        .await,
        json!([
            {
                "shown": [
                    "text/html", "text/markdown", "application/json", "text/latex", "text/latex",
                    "image/svg+xml", "application/javascript", "p", "{'plain': 1}"
                ]
            },
            {"shown": ["'two'"]},
            {"shown": ["'second'"]},
            {"shown": ["2"]},
            {
                "stdout": "(255, 0, 0)\n", "value": "<PIL.Image.Image image mode=RGB size=4x2>", "as": "image/jpeg image/png",
                "files": ["grey.jpg", "red.png"]
            },
            {"shown": ["text/html"]},
            {"shown": ["text/latex"]},
            {"shown": ["text/markdown"]},
            {"value": "both", "as": "text/html"},
            {"value": "2"},
            {},
            {}
        ])
    );
}

#[tokio::test]
async fn what_cannot_be_shown_as_it_should_is_told_beside_its_text() {
    let code = "
        class Broken:
            def _repr_html_(self): raise ValueError('no html')
            def __repr__(self): return 'broken'
        Broken()";
    assert_eq!(tells(code).await["value"], "broken");
    assert_eq!(complaint(code).await, "ValueError: no html");
}
