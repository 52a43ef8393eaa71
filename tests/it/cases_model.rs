//! The cases that users of other systems report of the loop (L01 to L13), over both wires.

use serde_json::{Value, json};

use crate::support::model::{Reply, Shape, StubModel, call, run, said_run, text};
use crate::support::problem;
use crate::support::server::caller;

const WIRES: [&str; 2] = ["stub", "claude"];

/// The run that a script gives over each wire, and what the model was told last.
async fn play(case: &str, replies: &[Reply]) -> Vec<(Value, String)> {
    let mut runs = Vec::new();
    for wire in WIRES {
        let script = format!("{case}-{wire}");
        let message = StubModel::shared().script(&script, replies);
        let body = json!({"message": message, "model": wire});
        let (status, run) = caller().post("/v1/interpret", body).await;
        assert_eq!(status, 200, "{run}");
        let told = StubModel::shared().requests(&script).pop().unwrap();
        runs.push((run, told["messages"].to_string()));
    }
    runs
}

#[tokio::test]
async fn l01_code_in_a_fence_is_that_code() {
    let fenced = json!({"code": "```python\nprint(1)\n```"}).to_string();
    for (run, _) in play("l01", &[call("run_python", &fenced).into(), text("1")]).await {
        assert_eq!(run["code_exec_results"][0]["execution"]["stdout"], "1\n");
        assert_eq!(run["code_exec_results"][0]["code"], "print(1)\n");
    }
}

#[tokio::test]
async fn l03_an_unknown_tool_is_told_and_the_loop_goes_on() {
    let replies = [call("browser_search", "{}").into(), run(&["1"]), text("done")];
    for (run, told) in play("l03", &replies).await {
        assert_eq!((&run["status"], &run["turns"]), (&json!("success"), &json!(3)));
        assert!(told.contains("there is no tool") && told.contains("run_python"), "{told}");
    }
}

#[tokio::test]
async fn l04_bare_code_in_place_of_json_is_run() {
    let bare = "import pandas as pd\nprint(1)";
    for (run, _) in play("l04", &[call("run_python", bare).into(), text("1")]).await {
        assert_eq!(run["code_exec_results"][0]["execution"]["stdout"], "1\n");
    }
}

#[tokio::test]
async fn l06_a_missing_file_is_told_with_the_files_that_there_are() {
    let code =
        "import pandas as pd\nopen('sales 1.csv', 'w').write('n')\npd.read_csv('/files/sales.csv')";
    for (run, told) in play("l06", &[run(&[code]), text("No such file.")]).await {
        let execution = &run["code_exec_results"][0]["execution"];
        assert_eq!(execution["error_detail"]["name"], "FileNotFoundError");
        let list = "files in the working folder:\\n- \\\"sales 1.csv\\\" (1 bytes)";
        assert!(told.contains(list), "{told}");
    }
    for (_, told) in play("l06-none", &[run(&["open('x')"]), text("None.")]).await {
        assert!(told.contains("There are no files in the working folder."), "{told}");
    }
}

#[tokio::test]
async fn l07_the_same_call_for_ever_ends_by_max_turns_with_its_results() {
    for (run, told) in play("l07", &[run(&["print('same')"])]).await {
        assert_eq!(
            (&run["status"], &run["failure"]["kind"]),
            (&json!("error"), &json!("max_turns"))
        );
        assert_eq!(
            (run["code_exec_results"].as_array().unwrap().len(), &run["turns"]),
            (3, &json!(4))
        );
        assert!(told.contains("the same call was sent again and again"), "{told}");
    }
    let replies = [run(&["1"]), run(&["1"]), run(&["1"]), text("Well, 1.")];
    for (run, _) in play("l07-comes-round", &replies).await {
        assert_eq!((&run["status"], &run["text"]), (&json!("success"), &json!("Well, 1.")));
    }
}

#[tokio::test]
async fn l09_a_call_written_as_text_is_one() {
    let pretended = r#"{"name": "execute", "arguments": {"code": "print(9)"}}"#;
    for (run, _) in play("l09", &[text(pretended), text("9")]).await {
        assert_eq!(run["code_exec_results"][0]["execution"]["stdout"], "9\n");
        assert_eq!(run["text"], "9");
    }
}

#[tokio::test]
async fn l10_nothing_again_and_again_ends_as_model_empty() {
    for (run, told) in play("l10", &[text("")]).await {
        assert_eq!((&run["failure"]["kind"], &run["turns"]), (&json!("model_empty"), &json!(3)));
        assert!(told.contains("Your last message was empty"), "{told}");
    }
}

#[tokio::test]
async fn l11_links_lead_to_files_and_a_missing_one_is_told() {
    let answer = "[Download](sandbox:/files/out.csv), [b](sandbox:/mnt/data/sub/b%20c.txt), \
                  ![no](<sandbox:/files/no.png>), [x](sandbox:/etc/passwd), ![c](chart.png), [d](nothing.txt)";
    let code = "import os\nos.mkdir('sub')\nopen('out.csv', 'w').write('a'), open('sub/b c.txt', 'w').write('b'), open('left.txt', 'w').write('c'), open('chart.png', 'w').write('d')";
    for (run, _) in play("l11", &[run(&[code]), text(answer)]).await {
        assert_eq!(run["text"], answer, "the answer stays as it is");
        let files = run["output_files"].as_array().unwrap();
        let told: Vec<_> = files.iter().map(|file| (&file["path"], &file["linked"])).collect();
        let file = |path: &str, linked: bool| (json!(path), json!(linked));
        let expected = [
            file("chart.png", true),
            file("left.txt", false),
            file("out.csv", true),
            file("sub/b c.txt", true),
        ];
        assert_eq!(told, expected.iter().map(|(path, linked)| (path, linked)).collect::<Vec<_>>());
        assert_eq!(run["missing_files"], json!(["no.png", "/etc/passwd"]));
        assert_eq!(run["code_exec_results"][0]["output"].as_array().unwrap().len(), 4);
        for file in files {
            let (status, _) = crate::support::answer(
                caller().request(reqwest::Method::HEAD, file["url"].as_str().unwrap()),
            )
            .await;
            assert_eq!(status, 200, "{file}");
        }
    }
}

#[tokio::test]
async fn l13_a_service_that_fails_in_every_way_is_a_problem_and_its_run_is_kept() {
    for wire in WIRES {
        let failing = |status: u16| Reply::Http {
            status,
            headers: vec![("retry-after", "0".to_owned())],
            body: String::new(),
        };
        let cut = said_run(&["print(2)"]).shaped(Shape { cut_after: Some(3), ..Shape::default() });
        let script = format!("l13-{wire}");
        let replies = [run(&["print(1)"]), failing(429), failing(500), cut];
        let message = StubModel::shared().script(&script, &replies);
        let told = caller().post("/v1/interpret", json!({"message": message, "model": wire})).await;
        assert_eq!(problem(&told), (502, "model_unavailable".into()));
        let (_, run) =
            caller().get(&format!("/v1/runs/{}", told.1["run_id"].as_str().unwrap())).await;
        assert_eq!(run["failure"]["kind"], "model_unavailable");
        assert_eq!(
            run["code_exec_results"].as_array().unwrap().len(),
            1,
            "what was cut was not run"
        );
        assert_eq!(StubModel::shared().requests(&script).len(), 4, "three attempts at a turn");
    }
}
