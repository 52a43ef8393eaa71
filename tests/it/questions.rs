//! Data questions over real tables with known answers, played by `replay` and scored by themselves.
//!
//! `tests/questions` holds the tables (written in the sandbox from the data sets that scikit-learn
//! carries), the questions with their solutions, and the program that finds the answers another way.

use std::collections::BTreeMap;

use futures::StreamExt;
use reqwest::Method;
use reqwest::multipart::{Form, Part};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::server::{Server, caller, open_folder};
use crate::support::{Caller, Session, answer};

const TABLES: &str = include_str!("../questions/tables.py");
const QUESTIONS: &str = include_str!("../questions/questions.json");
const ANSWERS: &str = include_str!("../questions/answers.py");
/// Questions at once.
const AT_ONCE: usize = 3;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    name: String,
    #[serde(rename = "question")]
    message: String,
    files: Vec<String>,
    /// The solution, a cell a turn; the last one prints the answer as its last line, in JSON.
    cells: Vec<String>,
    /// Cells that end in an error, which the next one mends.
    fails: Vec<usize>,
    expected: Value,
    /// Relative.
    tolerance: f64,
    files_made: Vec<String>,
    /// What the model says at last.
    answer: String,
}

impl Question {
    fn status(&self, cell: usize) -> &'static str {
        if self.fails.contains(&cell) { "error" } else { "success" }
    }

    /// What the model of this question says, turn by turn.
    fn recording(&self) -> Value {
        let after = |number: usize| match number.checked_sub(1) {
            Some(before) if self.fails.contains(&before) => json!(["status: error"]),
            Some(_) => json!(["status: ok"]),
            None => json!([]),
        };
        let cell =
            |(number, code): (usize, &String)| json!({"after": after(number), "code": [code]});
        let mut turns: Vec<Value> = self.cells.iter().enumerate().map(cell).collect();
        turns.push(json!({"after": after(self.cells.len()), "text": self.answer}));
        json!({"question": self.message, "turns": turns})
    }
}

fn questions() -> Vec<Question> {
    serde_json::from_str(QUESTIONS).unwrap()
}

/// True when both say the same: numbers within a tolerance, texts exactly, lists one by one.
fn same(found: &Value, expected: &Value, tolerance: f64) -> bool {
    match (found, expected) {
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len()
                && found.iter().zip(expected).all(|(a, b)| same(a, b, tolerance))
        }
        (Value::Number(found), Value::Number(expected)) => {
            let (found, expected) = (found.as_f64().unwrap(), expected.as_f64().unwrap());
            (found - expected).abs() <= tolerance * expected.abs()
        }
        (found, expected) => found == expected,
    }
}

/// What the code found: the last line that the last cell printed.
fn found(run: &Value) -> Option<Value> {
    let stdout = run["code_exec_results"].as_array()?.last()?["execution"]["stdout"].as_str()?;
    serde_json::from_str(stdout.lines().last()?).ok()
}

/// Why an answer is not right; None for one that is.
fn wrong_with(question: &Question, run: &Value) -> Option<String> {
    let results = run["code_exec_results"].as_array()?;
    let statuses = results.iter().map(|result| result["execution"]["status"].as_str().unwrap());
    let expected = (0..question.cells.len()).map(|cell| question.status(cell));
    if run["status"] != "success" || !statuses.eq(expected) || run["text"] != question.answer {
        return Some(format!("it ended otherwise: {run}"));
    }
    let files = run["output_files"].as_array()?;
    let mut made: Vec<&str> = files.iter().map(|file| file["path"].as_str().unwrap()).collect();
    made.sort_unstable();
    if made != question.files_made {
        return Some(format!("it made {made:?}"));
    }
    match found(run) {
        Some(found) if same(&found, &question.expected, question.tolerance) => None,
        other => Some(format!("it found {other:?}, not {}", question.expected)),
    }
}

/// Writes the tables in a session and gives their contents by name.
async fn tables(session: &Session<'_>) -> BTreeMap<String, Vec<u8>> {
    let execution = session.exec(TABLES).await;
    assert_eq!(execution["status"], "success", "{execution}");
    let mut tables = BTreeMap::new();
    for file in execution["files"].as_array().unwrap() {
        let path = file["path"].as_str().unwrap();
        let content = session.download(path).await.bytes().await.unwrap();
        tables.insert(path.to_owned(), content.to_vec());
    }
    tables
}

async fn ask(caller: &Caller, question: &Question, tables: &BTreeMap<String, Vec<u8>>) -> Value {
    let request = json!({"message": question.message}).to_string();
    let mut form = Form::new().part("request", Part::text(request));
    for name in &question.files {
        let part = Part::bytes(tables[name].clone()).file_name(name.clone());
        form = form.part("file", part);
    }
    let request = caller.request(Method::POST, "/v1/interpret").multipart(form);
    let (status, run) = answer(request).await;
    assert_eq!(status, 200, "{}: {run}", question.name);
    run
}

#[tokio::test]
async fn every_data_question_over_real_tables_is_answered_right() {
    let questions = questions();
    let folder = open_folder();
    let file = folder.path().join("recordings.json");
    let recordings: Vec<Value> = questions.iter().map(Question::recording).collect();
    std::fs::write(&file, json!({"recordings": recordings}).to_string()).unwrap();
    let settings = [("MODEL_PROTOCOL", "replay"), ("MODEL_REPLAY_FILE", file.to_str().unwrap())];
    let server = Server::start_in(&folder.path().join("data"), &settings);
    let caller = server.caller();
    let session = caller.session().await;
    let tables = tables(&session).await;
    assert!(questions.len() >= 20);
    for ending in ["csv", "xlsx", "json"] {
        let of_it = |question: &&Question| question.files.iter().any(|file| file.ends_with(ending));
        assert!(questions.iter().filter(of_it).count() >= 6, "{ending}");
    }
    let (caller, tables) = (&caller, &tables);
    let judged = futures::stream::iter(&questions).map(|question| async move {
        let run = ask(caller, question, tables).await;
        wrong_with(question, &run).map(|why| format!("{}: {why}", question.name))
    });
    let wrong: Vec<String> =
        judged.buffer_unordered(AT_ONCE).filter_map(async |wrong| wrong).collect().await;
    println!("{} of {} questions answered right", questions.len() - wrong.len(), questions.len());
    assert_eq!(wrong, Vec::<String>::new());
}

#[tokio::test]
async fn the_known_answers_are_found_another_way_too() {
    let caller = caller();
    let session = caller.session().await;
    tables(&session).await;
    session.put("answers.py", ANSWERS).await;
    session.put("questions.json", QUESTIONS).await;
    let command = json!({"command": "python3 answers.py ."});
    let (_, execution) = caller.post(&session.path("/shell"), command).await;
    assert_eq!(execution["status"], "success", "{execution}");
    let told = execution["stdout"].as_str().unwrap();
    assert!(told.contains(&format!("{} questions, 0 wrong", questions().len())), "{told}");
}

#[test]
fn a_wrong_answer_is_scored_as_wrong() {
    let question = &questions()[0];
    let run = |printed: &str| {
        let execution = json!({"status": "success", "stdout": format!("noise\n{printed}\n")});
        json!({"status": "success", "text": question.answer, "output_files": [], "code_exec_results": [{"execution": execution}]})
    };
    let right = question.expected.as_f64().unwrap();
    assert_eq!(wrong_with(question, &run(&right.to_string())), None);
    for printed in [(right * 1.001).to_string(), "\"5.552\"".to_owned(), "None".to_owned()] {
        assert!(wrong_with(question, &run(&printed)).is_some(), "{printed}");
    }
    assert!(
        !same(&json!([1, 2]), &json!([1]), 0.1) && same(&json!([0, "a"]), &json!([0, "a"]), 0.0)
    );
}
